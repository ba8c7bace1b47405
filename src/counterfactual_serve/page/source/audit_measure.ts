// One measure of an audit: a table with bars, groups by models, and the gaps between them.

import type { Audit, Measure } from "./audit_document";
import { intervalBar, swatch } from "./bars";
import { type Child, h, scroller } from "./dom";
import { icon } from "./icons";
import { brief, number } from "./words";

const LETTERS = ["A", "B"];

/** A model as a letter and a colour; its name is in the first table, where there is room for it. */
export function which(index: number, name: string): HTMLElement {
  return h("span", { class: "which", title: name }, swatch(index), LETTERS[index] ?? String(index + 1));
}

/** A number in the unit of its measure. */
export function say(value: number | null, unit: string): string {
  if (value === null) return "–";
  if (unit !== "share") return brief(value);
  return `${number(value * 100, 1)}%`;
}

/** Where bars end. Shares end at a round one, or an interval of 0 to 1% would fill the width like one of 0 to 100%. */
function scale(largest: number, unit: string): number {
  if (unit !== "share") return largest || 1;
  return [0.1, 0.25, 0.5].find((end) => largest <= end) ?? 1;
}

/** A difference: of shares in points, because "16% higher" may mean two things. */
function sayGap(value: number | null, unit: string): string {
  return value === null || unit !== "share" ? say(value, unit) : number(value * 100, 1);
}

function interval(entry: { value: number | null; low: number | null; high: number | null }, unit: string): string {
  const points = unit === "share" ? " points" : "";
  return `${sayGap(entry.value, unit)}${points} (${sayGap(entry.low, unit)} to ${sayGap(entry.high, unit)})`;
}

export function measureTable(measure: Measure, found: Audit): HTMLElement {
  const ends = measure.models
    .flatMap((model) => model.groups.flatMap((group) => [group.value, group.high]))
    .filter((value) => value !== null);
  const most = scale(Math.max(...ends, 0), measure.unit);
  const groups = measure.models[0]?.groups.map((group) => group.group) ?? [];
  const several = found.models.length > 1;
  const line = (name: string): Child[] =>
    measure.models.map((model, i) => {
      const entry = model.groups.find((group) => group.group === name);
      return h(
        "tr",
        { class: i ? "second" : null },
        i === 0 ? h("th", { scope: "row", rowspan: measure.models.length }, name) : null,
        several ? h("td", {}, which(i, model.name)) : null,
        h("td", { class: "bars" }, entry ? intervalBar(entry.value, entry.low, entry.high, most, i) : null),
        h("td", { class: "right" }, entry ? say(entry.value, measure.unit) : "–"),
        h(
          "td",
          { class: "right note" },
          entry && entry.low !== null ? `${say(entry.low, measure.unit)} to ${say(entry.high, measure.unit)}` : "",
        ),
        h(
          "td",
          { class: "right note" },
          entry ? number(entry.n, 0) : "",
          entry?.few ? h("span", { title: "few people" }, " few") : null,
        ),
      );
    });
  const titles = ["Group", ...(several ? ["Model"] : []), "", "Value", "Interval", "People"];
  const head = titles.map((title) => (title ? h("th", { scope: "col" }, title) : h("td")));
  return h(
    "figure",
    { class: "measure" },
    h(
      "figcaption",
      {},
      h("h4", {}, measure.title),
      h("p", { class: "note" }, measure.meaning, measure.formula ? [" ", h("code", {}, measure.formula)] : null),
    ),
    scroller(measure.title, {}, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, groups.map(line)))),
    measure.models.map((model, i) => gapWords(model, i, measure, several)),
    measure.differences.length ? differences(measure) : null,
  );
}

function gapWords(
  { gap }: Measure["models"][number],
  index: number,
  measure: Measure,
  several: boolean,
): HTMLElement | null {
  if (!gap) return null;
  const who = several ? `${LETTERS[index] ?? ""}: ` : "";
  const size = interval(gap, measure.unit);
  const text = gap.clear
    ? `${who}${gap.highest} is higher than ${gap.lowest} by ${size}.`
    : `${who}no clear difference between groups; the largest is ${size}.`;
  return h("p", { class: gap.clear ? "gap clear" : "gap" }, gap.clear ? icon("alert") : null, text);
}

function differences(measure: Measure): HTMLElement {
  const parts = measure.differences
    .filter((entry) => entry.value !== null)
    .map(
      (entry) =>
        `${entry.group} ${entry.value! > 0 ? "+" : ""}${interval(entry, measure.unit)}${entry.clear ? "" : ", not clear"}`,
    );
  return h("p", { class: "gap" }, `A minus B: ${parts.join("; ")}.`);
}
