// One column as a card: its value to try, and the rules that plans keep for it.

import type { Cell, Column } from "./contract";
import { breakable, choice, field, fresh, h } from "./dom";
import { numberValue } from "./feature_number";
import { allowedControl } from "./feature_range";
import { icon } from "./icons";
import { DIFFICULTIES, heldBy, meaning, rulesOf, setRule } from "./rules";
import { emit, state } from "./state";
import { cell, withUnit } from "./words";

/** Values of a select are positions, because categories may be numbers, booleans or any text. */
const MISSING = "missing";

export function featureCard(entry: Column): HTMLElement {
  const held = heldBy(entry);
  const id = fresh("feature");
  const card = h("section", {
    class: `feature ${held ? "fixed" : ""}`,
    "aria-labelledby": id,
    "data-column": entry.name,
  });
  const real = h("p", { class: "real" });
  const changed = (): void => {
    const here = state.set[entry.name];
    const own = state.person.values[entry.name];
    card.classList.toggle("moved", here !== own);
    real.textContent =
      here === own ? limits(entry) : `${state.person.row === null ? "typical" : "really"} ${withUnit(entry, own)}`;
  };
  card.append(
    h(
      "header",
      {},
      h("h4", { id, title: entry.name }, breakable(entry.name)),
      held ? h("span", { class: "badge" }, icon("lock"), held) : lock(entry, card),
    ),
    entry.categories ? selectValue(entry, changed) : numberValue(entry, (value) => put(entry, value, changed)),
    real,
  );
  if (!held) card.append(rules(entry));
  card.classList.toggle("locked", rulesOf(entry.name).lock);
  changed();
  return card;
}

/** Where most people are: it makes a slider's ends and a lonely category readable. */
function usually(entry: Column): string {
  if (entry.categories) return `most common: ${cell(entry, entry.typical)}`;
  return entry.range ? `most between ${cell(entry, entry.range[0])} and ${cell(entry, entry.range[1])}` : "";
}

/** What is usual, and what the model's own rules say about a column. */
function limits(entry: Column): string {
  const said: string[] = [usually(entry)];
  if (entry.mutability === "increase" || entry.mutability === "decrease") said.push(entry.may);
  if (entry.max_change !== null) said.push(`by at most ${withUnit(entry, entry.max_change)}`);
  if (entry.step !== null) said.push(`in steps of ${withUnit(entry, entry.step)}`);
  if (entry.special.length) said.push(`${entry.special.join(", ")} means no record`);
  return said.filter(Boolean).join("; ");
}

function put(entry: Column, value: Cell, changed: () => void): void {
  state.set = { ...state.set, [entry.name]: value };
  changed();
  emit("values");
}

function selectValue(entry: Column, changed: () => void): HTMLElement {
  const values = entry.categories ?? [];
  const here = state.set[entry.name] ?? null;
  const options = values.map((value, i): [string, string] => [String(i), withUnit(entry, value)]);
  // A value that the model never saw, or none at all, still has to be shown as it is.
  const unknown = values.indexOf(here) < 0;
  if (unknown) options.unshift([MISSING, here === null ? "missing" : String(here)]);
  const take = (event: Event): void => {
    const chosen = (event.target as HTMLSelectElement).value;
    put(entry, chosen === MISSING ? here : values[Number(chosen)]!, changed);
  };
  return choice(options, unknown ? MISSING : String(values.indexOf(here)), {
    class: "value",
    "aria-label": `Value of ${entry.name}`,
    "data-key": `value-${entry.name}`,
    on: { change: take },
  });
}

function lock(entry: Column, card: HTMLElement): HTMLElement {
  const flip = (event: Event): void => {
    const { checked } = event.target as HTMLInputElement;
    setRule(entry.name, { lock: checked });
    card.classList.toggle("locked", checked);
    emit("rules");
  };
  const box = h("input", {
    type: "checkbox",
    checked: rulesOf(entry.name).lock,
    "data-key": `lock-${entry.name}`,
    on: { change: flip },
  });
  return h(
    "label",
    { class: "lock", title: meaning("lock") },
    box,
    icon("lock"),
    h("span", {}, "Lock", h("span", { class: "unseen" }, ` ${entry.name}`)),
  );
}

function rules(entry: Column): HTMLElement {
  return h("div", { class: "rules" }, allowedControl(entry), difficulty(entry));
}

function difficulty(entry: Column): HTMLElement {
  const options = DIFFICULTIES.map(([value, words]): [string, string] => [String(value), words]);
  const take = (event: Event): void => {
    setRule(entry.name, { difficulty: Number((event.target as HTMLSelectElement).value) });
    emit("rules");
  };
  const select = choice(options, String(rulesOf(entry.name).difficulty), {
    "data-key": `difficulty-${entry.name}`,
    title: meaning("difficulty"),
    on: { change: take },
  });
  return field(["To change", h("span", { class: "unseen" }, ` ${entry.name}`)], select);
}
