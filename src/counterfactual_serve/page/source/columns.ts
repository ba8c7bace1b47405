// Which columns the table of people shows: a few of many, as the reader likes.

import type { Column } from "./contract";
import { button, h } from "./dom";
import { state } from "./state";

// More than this are slow to read and to draw; the picker shows the others.
const MOST = 30;
let hidden: Set<string> | null = null;
let open = false;
let search = "";

function startHidden(): Set<string> {
  return new Set(state.schema.columns.slice(MOST).map((entry) => entry.name));
}

export function shownColumns(): Column[] {
  hidden ??= startHidden();
  return state.schema.columns.filter((entry) => !hidden!.has(entry.name));
}

/** A list of check boxes behind a summary that says how many are shown. */
export function columnPicker(changed: () => void): HTMLElement {
  const all = state.schema.columns;
  const list = h("div", { class: "checks" });
  const draw = (): void => {
    const fits = all.filter((entry) => entry.name.toLowerCase().includes(search.toLowerCase())).slice(0, 200);
    list.replaceChildren(...fits.map((entry) => box(entry, changed)));
  };
  draw();
  const find = h("input", {
    type: "search",
    value: search,
    "aria-label": "Find a column",
    placeholder: "Find a column",
    on: {
      input: (event) => {
        search = (event.target as HTMLInputElement).value;
        draw();
      },
    },
  });
  const some = (shown: boolean) => (): void => {
    hidden = new Set(shown ? [] : all.map((entry) => entry.name));
    changed();
  };
  return h(
    "details",
    {
      class: "picker",
      open,
      "data-live": true,
      on: { toggle: (event) => (open = (event.target as HTMLDetailsElement).open) },
    },
    h("summary", { "data-key": "columns" }, `Columns: ${shownColumns().length} of ${all.length} shown`),
    all.length > 15 ? find : null,
    h(
      "div",
      { class: "buttons" },
      button("All", some(true), { class: "small" }),
      button("None", some(false), { class: "small" }),
    ),
    list,
  );
}

function box(entry: Column, changed: () => void): HTMLElement {
  const flip = (event: Event): void => {
    if ((event.target as HTMLInputElement).checked) hidden!.delete(entry.name);
    else hidden!.add(entry.name);
    changed();
  };
  const checked = !hidden!.has(entry.name);
  const input = h("input", { type: "checkbox", checked, "data-key": `column-${entry.name}`, on: { change: flip } });
  return h("label", { class: "check" }, input, h("span", {}, entry.name));
}
