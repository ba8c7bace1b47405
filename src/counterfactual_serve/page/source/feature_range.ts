// Where plans may lead a column: an interval for numbers and levels, a list for categories.

import type { Cell, Column } from "./contract";
import { choice, fill, h } from "./dom";
import { contradicts, meaning, rulesOf, setRule, takesInterval } from "./rules";
import { emit, state } from "./state";
import { cell, listed, number } from "./words";

export function allowedControl(entry: Column): HTMLElement {
  if (!takesInterval(entry)) return categories(entry);
  return h(
    "fieldset",
    { class: "range", title: meaning("domain") },
    h("legend", {}, "Allowed", h("span", { class: "unseen" }, ` values of ${entry.name}`)),
    entry.categories ? levels(entry) : numbers(entry),
  );
}

/** Two ends and, below them, what is wrong if the lower one is above the upper one. */
function pair(entry: Column, low: HTMLElement, high: HTMLElement): HTMLElement {
  const wrong = h("p", { class: "wrong", role: "alert" });
  const check = (): void => {
    const bad = contradicts(entry, rulesOf(entry.name));
    fill(wrong, bad ? "The first is above the second; this range is left out." : null);
    for (const end of [low, high]) {
      if (bad) end.setAttribute("aria-invalid", "true");
      else end.removeAttribute("aria-invalid");
    }
  };
  for (const end of [low, high]) end.addEventListener("change", check);
  check();
  return h("div", {}, h("div", { class: "interval" }, low, h("span", {}, "to"), high), wrong);
}

function numbers(entry: Column): HTMLElement {
  const rules = rulesOf(entry.name);
  const end = (key: "low" | "high", word: string, at: 0 | 1): HTMLInputElement => {
    const stated = entry.domain?.[at] ?? null;
    return h("input", {
      type: "number",
      step: "any",
      value: rules[key] === null ? "" : String(rules[key]),
      placeholder: typeof stated === "number" ? number(stated, 4, entry.grouped) : "any",
      "aria-label": `${entry.name}: ${word}`,
      "data-key": `${key}-${entry.name}`,
      on: { change: (event) => take(entry, key, event.target as HTMLInputElement) },
    });
  };
  return pair(entry, end("low", "lowest value allowed", 0), end("high", "highest value allowed", 1));
}

function take(entry: Column, key: "low" | "high", box: HTMLInputElement): void {
  // What is no number is no rule, and must not stay in the box as if it were one.
  if (box.validity.badInput) box.value = "";
  setRule(entry.name, { [key]: box.value === "" ? null : Number(box.value) });
  emit("rules");
}

function levels(entry: Column): HTMLElement {
  const values = entry.categories ?? [];
  const rules = rulesOf(entry.name);
  const end = (key: "low" | "high", word: string): HTMLSelectElement => {
    const options = values.map((value, i): [string, string] => [String(i), cell(entry, value)]);
    const chosen = rules[key] === null ? "" : String(values.indexOf(rules[key]));
    const change = (event: Event): void => {
      const text = (event.target as HTMLSelectElement).value;
      setRule(entry.name, { [key]: text === "" ? null : values[Number(text)]! });
      emit("rules");
    };
    return choice([["", "any"], ...options], chosen, {
      "aria-label": `${entry.name}: ${word}`,
      "data-key": `${key}-${entry.name}`,
      on: { change },
    });
  };
  return pair(entry, end("low", "lowest level allowed"), end("high", "highest level allowed"));
}

/** Check boxes behind a summary. None ticked allows all: one tick to name a category, instead of forty to rule out others. */
function categories(entry: Column): HTMLElement {
  const possible = entry.allowed ?? entry.categories ?? [];
  const chosen = (): Cell[] => rulesOf(entry.name).allowed ?? [];
  const summary = h("summary", { "data-key": `allowed-${entry.name}` });
  const title = (): void => {
    const some = chosen().length
      ? `only ${listed(
          chosen().map((value) => cell(entry, value)),
          2,
        )}`
      : `any of ${possible.length}`;
    fill(summary, "Allowed", h("span", { class: "unseen" }, ` values of ${entry.name}`), `: ${some}`);
  };
  const box = (value: Cell): HTMLElement => {
    const flip = (event: Event): void => {
      const { checked } = event.target as HTMLInputElement;
      const next = possible.filter((other) => (other === value ? checked : chosen().includes(other)));
      setRule(entry.name, { allowed: next.length ? next : null });
      title();
      emit("rules");
    };
    const own = value === state.person.values[entry.name];
    const input = h("input", {
      type: "checkbox",
      checked: chosen().includes(value),
      "data-key": `allow-${entry.name}-${String(value)}`,
      on: { change: flip },
    });
    return h(
      "label",
      { class: "check" },
      input,
      h("span", {}, cell(entry, value), own ? h("small", {}, " (now)") : null),
    );
  };
  title();
  return h(
    "details",
    { class: "allowed" },
    summary,
    h("p", { class: "hint" }, `${meaning("domain")} Nothing ticked: any.`),
    h("div", { class: "checks" }, possible.map(box)),
  );
}
