// Small drawings. They always stand beside words, so screen readers skip them.

import { s } from "./dom";

const PATHS = {
  lock: "M5 9V6.5a3 3 0 0 1 6 0V9M4 9h8v5H4z",
  keep: "M4.5 2.5h7v11L8 10.8 4.5 13.5z",
  receipt: "M4 2.5h8v11l-2-1.4-2 1.4-2-1.4-2 1.4zM6 5.5h4M6 8h4",
  try: "M3 5h6M12 5h1M3 11h1M7 11h6M10.5 3.2v3.6M5.5 9.2v3.6",
  yes: "M3.5 8.5 6.5 11.5 12.5 4.5",
  no: "M4 4l8 8M12 4l-8 8",
  alert: "M8 2.5 14 13H2zM8 6.5v3M8 11.2v.3",
  arrow: "M3 8h10M9 4l4 4-4 4",
};

export type Icon = keyof typeof PATHS;

export function icon(name: Icon): SVGElement {
  const path = s("path", { d: PATHS[name] });
  return s("svg", { class: `icon icon-${name}`, viewBox: "0 0 16 16", "aria-hidden": "true" }, path);
}
