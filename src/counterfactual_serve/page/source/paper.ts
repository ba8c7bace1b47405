// What stands on paper and in exported files instead of cards and forms: the person's values and the rules as a table.

import { at, breakable, fill, h, scroller } from "./dom";
import { heldBy, rulesOf, takesInterval } from "./rules";
import type { Column } from "./contract";
import { on, state } from "./state";
import { cell, listed, withUnit } from "./words";
import { DIFFICULTIES } from "./rules";

export function buildPaper(): void {
  const holder = h("div", { class: "paper-only", id: "values-on-paper" });
  at("features").after(holder);
  for (const topic of ["person", "values", "rules", "cards"] as const) on(topic, draw);
  draw();
}

function draw(): void {
  const lines = state.schema.columns.map((entry) => {
    const [own, here] = [state.person.values[entry.name], state.set[entry.name]];
    const tried = own === here ? "" : withUnit(entry, here);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, breakable(entry.name)),
      h("td", {}, withUnit(entry, own)),
      h("td", {}, tried),
      h("td", {}, ruleWords(entry)),
    );
  });
  const head = ["Column", "Value", "Tried", "Rules"].map((title) => h("th", { scope: "col" }, title));
  const title = `Values of ${state.person.title.replace(/^./, (letter) => letter.toLowerCase())}`;
  const table = h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, lines));
  fill(at("values-on-paper"), h("h3", {}, title), scroller(title, {}, table));
}

function ruleWords(entry: Column): string {
  const held = heldBy(entry);
  if (held) return held;
  const rules = rulesOf(entry.name);
  if (rules.lock) return "locked";
  const said: string[] = [];
  if (takesInterval(entry) && (rules.low !== null || rules.high !== null))
    said.push(
      `${rules.low === null ? "" : `from ${cell(entry, rules.low)} `}${rules.high === null ? "" : `up to ${cell(entry, rules.high)}`}`.trim(),
    );
  if (rules.allowed)
    said.push(
      `only ${listed(
        rules.allowed.map((value) => cell(entry, value)),
        5,
      )}`,
    );
  if (rules.difficulty !== 1)
    said.push(`${DIFFICULTIES.find(([value]) => value === rules.difficulty)?.[1] ?? ""} to change`);
  return said.join(", ");
}
