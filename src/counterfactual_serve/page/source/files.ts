// Files that the page hands over.

import { h } from "./dom";

/** Offer a text as a download. */
export function save(name: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: fileName(name), hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  // The browser reads the file after the click; it needs the url a little longer.
  window.setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Letters, digits and dashes only: names of models and people may hold anything. */
function fileName(name: string): string {
  const dot = name.lastIndexOf(".");
  const stem = name
    .slice(0, dot)
    .normalize("NFKD")
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-+|-+$/g, "");
  return `${(stem || "file").toLowerCase().slice(0, 80)}${name.slice(dot)}`;
}
