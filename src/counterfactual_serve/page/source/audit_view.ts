// The document of an audit as a page: what differs, by group and by model, with intervals.

import type { Audit } from "./audit_document";
import { later, proxies } from "./audit_further";
import { measureTable, which } from "./audit_measure";
import { type Child, h, scroller } from "./dom";
import { icon } from "./icons";
import { count, number, percent } from "./words";

const MOST_FINDINGS = 6;
// What is read first; the rest waits behind a summary.
const FIRST = new Set(["denied", "no_recourse", "implausible", "burden", "burden_same"]);

export function auditPage(found: Audit): Child[] {
  return [
    findings(found),
    models(found),
    found.columns.map((column) => columnSection(column, found)),
    found.proxies.length ? proxies(found.proxies) : null,
    found.later.length ? later(found.later) : null,
    found.notes.length
      ? h(
          "section",
          { class: "block" },
          h("h3", {}, "Notes"),
          h(
            "ul",
            {},
            found.notes.map((note) => h("li", {}, note)),
          ),
        )
      : null,
  ];
}

function list(said: string[]): HTMLElement {
  return h(
    "ul",
    { class: "findings" },
    said.map((text) => h("li", {}, icon("alert"), h("span", {}, text))),
  );
}

function findings({ clear_findings: clear, target, rows, level }: Audit): HTMLElement {
  const lead = `${number(rows, 0)} people measured; the wanted decision is ‘${target}’. Intervals are at ${percent(level)}.`;
  return h(
    "section",
    { class: "block" },
    h("h3", {}, clear.length ? "Clear differences" : "No clear difference"),
    h("p", { class: "note" }, lead),
    clear.length ? list(clear.slice(0, MOST_FINDINGS)) : null,
    clear.length > MOST_FINDINGS
      ? h(
          "details",
          {},
          h("summary", {}, count(clear.length - MOST_FINDINGS, "more clear difference")),
          list(clear.slice(MOST_FINDINGS)),
        )
      : null,
    clear.length ? null : h("p", {}, "No difference between groups is larger than chance explains."),
  );
}

function models({ models: all }: Audit): HTMLElement {
  const line = (one: Audit["models"][number], i: number): HTMLElement =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, all.length > 1 ? [which(i, one.name), " "] : null, one.name),
      h("td", {}, one.accuracy === null ? "–" : percent(one.accuracy)),
      h("td", {}, number(one.denied, 0)),
      h("td", {}, number(one.explained, 0)),
    );
  const head = ["Model", "Accuracy", "Turned down", "Plans asked for"].map((title) => h("th", { scope: "col" }, title));
  return scroller(
    "Models",
    {},
    h(
      "table",
      {},
      h("caption", { class: "unseen" }, "Models"),
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, all.map(line)),
    ),
  );
}

function columnSection(column: Audit["columns"][number], found: Audit): HTMLElement {
  const shown = column.measures.filter((measure) => FIRST.has(measure.id));
  const rest = column.measures.filter((measure) => !FIRST.has(measure.id));
  return h(
    "section",
    { class: "block" },
    h("h3", {}, column.column === null ? "Everybody" : `By ${column.title}`),
    h(
      "div",
      { class: "measures" },
      shown.map((measure) => measureTable(measure, found)),
    ),
    rest.length
      ? h(
          "details",
          {},
          h("summary", {}, count(rest.length, "more measure")),
          h(
            "div",
            { class: "measures" },
            rest.map((measure) => measureTable(measure, found)),
          ),
        )
      : null,
  );
}
