// Filters of the table of people: decision, free text, and any number of columns.

import type { Cell, Class, Column, Filter } from "./contract";
import { button, choice, field, fill, h } from "./dom";
import { classes, column, state } from "./state";
import { cell, named, number } from "./words";

export interface Filters {
  decision: Class | null;
  search: string | null;
  filters: Filter[];
}

/** Wait for a pause in typing, so that a word is one request. */
function patient(act: () => void, wait = 250): () => void {
  let timer = 0;
  return () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(act, wait);
  };
}

export function filterForm(apply: (filters: Filters) => void): HTMLElement {
  const now: Filters = { decision: null, search: null, filters: [] };
  const lines = h("div", { class: "filter-lines" });
  const parts = new Map<HTMLElement, () => Filter | null>();
  const tell = (): void => {
    now.filters = [...parts.values()].map((read) => read()).filter((entry) => entry !== null);
    apply({ ...now });
  };
  const later = patient(tell);
  const search = h("input", {
    type: "search",
    placeholder: "Any text",
    on: {
      input: (event) => {
        now.search = (event.target as HTMLInputElement).value.trim() || null;
        later();
      },
    },
  });
  const every: [string, string][] = [
    ["", "Everybody"],
    ...classes().map((of, i): [string, string] => [String(i), named(of)]),
  ];
  const decision = choice(every, "", {
    on: {
      change: (event) => {
        now.decision = classes()[Number((event.target as HTMLSelectElement).value || NaN)] ?? null;
        tell();
      },
    },
  });
  const drop = (line: HTMLElement) => (): void => {
    parts.delete(line);
    line.remove();
    adder.focus();
    tell();
  };
  const adder = columnSelect((entry) => {
    const line = h("div", { class: "filter-line", role: "group", "aria-label": `Filter by ${entry.name}` });
    parts.set(line, control(entry, line, later, drop(line)));
    lines.append(line);
    line.querySelector<HTMLElement>("input")?.focus();
  });
  return h(
    "form",
    {
      class: "filters",
      role: "search",
      "aria-label": "Filter people",
      "data-live": true,
      on: { submit: (event) => event.preventDefault() },
    },
    h(
      "div",
      { class: "row-of-fields" },
      field("Decision", decision),
      field("Search", search),
      field("Filter by", adder),
    ),
    lines,
  );
}

function columnSelect(pick: (entry: Column) => void): HTMLSelectElement {
  const names = state.schema.columns.map((entry): [string, string] => [entry.name, entry.name]);
  return choice([["", "a column …"], ...names], "", {
    on: {
      change: (event) => {
        const select = event.target as HTMLSelectElement;
        const entry = column(select.value);
        select.value = "";
        if (entry) pick(entry);
      },
    },
  });
}

/** Fill one line with the controls of a column; returns how to read them. */
function control(entry: Column, line: HTMLElement, tell: () => void, drop: () => void): () => Filter | null {
  const remove = button("Remove", drop, { class: "small", "aria-label": `Remove the filter by ${entry.name}` });
  const title = h("strong", { class: "name" }, entry.name);
  return entry.categories ? members(entry, line, title, remove, tell) : between(entry, line, title, remove, tell);
}

function between(entry: Column, line: HTMLElement, title: Node, remove: Node, tell: () => void): () => Filter | null {
  const end = (word: string, value: number | undefined): HTMLInputElement =>
    h("input", {
      type: "number",
      step: "any",
      "aria-label": `${entry.name} ${word}`,
      placeholder: value === undefined ? "" : number(value, entry.decimals ?? 2, entry.grouped),
      on: { input: tell },
    });
  const wrong = h("p", { class: "wrong", role: "status" });
  const [low, high] = [end("from", entry.range?.[0]), end("to", entry.range?.[1])];
  fill(
    line,
    title,
    h("span", { class: "interval" }, low, h("span", {}, "to"), high, entry.unit ? h("span", {}, entry.unit) : null),
    remove,
    wrong,
  );
  const read = (input: HTMLInputElement): number | null => (input.value === "" ? null : Number(input.value));
  return () => {
    const ends: [number | null, number | null] = [read(low), read(high)];
    const reversed = ends[0] !== null && ends[1] !== null && ends[0] > ends[1];
    fill(wrong, reversed ? "The first is above the second; this filter is left out." : null);
    for (const input of [low, high]) {
      if (reversed) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
    return reversed || (ends[0] === null && ends[1] === null) ? null : { column: entry.name, between: ends };
  };
}

function members(entry: Column, line: HTMLElement, title: Node, remove: Node, tell: () => void): () => Filter | null {
  const chosen = new Set<Cell>();
  const box = (value: Cell): HTMLElement => {
    const flip = (event: Event): void => {
      if ((event.target as HTMLInputElement).checked) chosen.add(value);
      else chosen.delete(value);
      tell();
    };
    return h(
      "label",
      { class: "check" },
      h("input", { type: "checkbox", on: { change: flip } }),
      h("span", {}, cell(entry, value)),
    );
  };
  fill(line, title, h("div", { class: "checks" }, (entry.categories ?? []).map(box)), remove);
  return () => (chosen.size ? { column: entry.name, in: [...chosen] } : null);
}
