// Export: what is shown as one HTML file without scripts, that opens anywhere and asks nobody for anything.

import { at, h } from "./dom";
import { save } from "./files";
import { state } from "./state";
import { today } from "./words";

interface Part {
  id: string;
  title: string;
  /** Where its content appears; an empty one has nothing to export. */
  content: string;
}

const PARTS: Part[] = [
  { id: "panel-people", title: "People: the rows of the table", content: "people-rows" },
  { id: "panel-plans", title: "Plans", content: "plans-content" },
  { id: "panel-map", title: "Map", content: "map-picture" },
  { id: "panel-compare", title: "Comparison", content: "compare-content" },
  { id: "panel-groups", title: "Groups", content: "audit" },
  { id: "panel-card", title: "Model card", content: "card-content" },
  { id: "panel-receipt", title: "Check of a receipt", content: "receipt-result" },
];
const STYLES = "styles";
const ABOUT_A_PERSON = new Set(["panel-plans", "panel-map", "panel-compare"]);

export function buildExport(): void {
  const dialog = at<HTMLDialogElement>("export-dialog");
  at("export").addEventListener("click", () => {
    at("export-parts").replaceChildren(...boxes());
    dialog.showModal();
  });
  at("export-cancel").addEventListener("click", () => dialog.close());
  at("export-form").addEventListener("submit", () => write(chosenParts()));
}

function ready({ content }: Part): boolean {
  const element = document.getElementById(content);
  return Boolean(element?.querySelector("*")) && !element?.querySelector(".busy");
}

function boxes(): HTMLElement[] {
  return PARTS.filter(ready).map((part) => {
    // Rows of other people leave the page only if somebody says so.
    const checked = !at(part.id).hidden && part.id !== "panel-people";
    return h(
      "label",
      { class: "check" },
      h("input", { type: "checkbox", name: "part", value: part.id, checked }),
      h("span", {}, part.title),
    );
  });
}

function chosenParts(): string[] {
  return [...at("export-parts").querySelectorAll<HTMLInputElement>("input:checked")].map((input) => input.value);
}

function write(parts: string[]): void {
  const { model } = state.about;
  const person = parts.some((id) => ABOUT_A_PERSON.has(id));
  const shown = [...(person ? [at("decision")] : []), ...parts.map((id) => at(id))].map(still);
  const page = document.implementation.createHTMLDocument(`${model.name}: ${state.person.title}`);
  page.documentElement.lang = "en";
  page.head.prepend(...heads());
  page.head.append(page.createComment(STYLES));
  page.body.className = "paper";
  page.body.append(
    h(
      "header",
      { class: "top" },
      h("div", { class: "brand" }, h("div", {}, h("h1", {}, model.name), h("p", {}, `Exported ${today()}`))),
    ),
    h("main", {}, shown),
    h("footer", { class: "foot" }, footing()),
  );
  // Put in as text: this page's own policy forbids style elements, in documents that it makes too.
  const text = page.documentElement.outerHTML.replace(`<!--${STYLES}-->`, () => `<style>${styles()}</style>`);
  save(`${model.name} ${person ? state.person.title : "page"}.html`, `<!doctype html>\n${text}\n`, "text/html");
}

function heads(): HTMLElement[] {
  // The file says of itself that it needs nothing, and browsers hold it to that.
  const policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
  return [
    h("meta", { charset: "utf-8" }),
    h("meta", { "http-equiv": "Content-Security-Policy", content: policy }),
    h("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }),
    h("meta", { name: "color-scheme", content: "light dark" }),
  ];
}

/** The rules of the page's own style sheet, read from the browser: no request, even while the server is away. */
function styles(): string {
  return [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules].map((rule) => rule.cssText)).join("\n");
}

export function footing(): string {
  const { about } = state;
  const data = about.data ? ` · data ${about.data.name}` : "";
  return `${about.model.name} · sha256 ${about.model.sha256}${data} · counterfactual-training ${about.version}`;
}

/** A copy that only shows: what can be pressed is left out, what was filled in becomes text. */
function still(panel: HTMLElement): HTMLElement {
  const copy = panel.cloneNode(true) as HTMLElement;
  copy.hidden = false;
  copy.querySelectorAll("[data-live], [hidden], #features, #question").forEach((element) => element.remove());
  copy.querySelectorAll(".pager button").forEach((element) => element.remove());
  copy.querySelectorAll("button").forEach((element) => element.replaceWith(...element.childNodes));
  copy.querySelectorAll("input, select, textarea").forEach((element) => element.remove());
  copy.querySelectorAll("details").forEach((element) => (element.open = true));
  copy.querySelectorAll("[tabindex], [aria-live], [role=alert]").forEach((element) => {
    for (const name of ["tabindex", "aria-live", "role"]) element.removeAttribute(name);
  });
  copy.querySelectorAll<HTMLElement>(".scroll").forEach(stillScrolls);
  return copy;
}

/** A wide table scrolls without scripts too, and on any screen: the tab key has to stop at it in every file. */
function stillScrolls(holder: HTMLElement): void {
  holder.classList.remove("over");
  holder.setAttribute("tabindex", "0");
  holder.setAttribute("role", "region");
  holder.setAttribute("aria-label", holder.dataset["label"] ?? "Table");
}
