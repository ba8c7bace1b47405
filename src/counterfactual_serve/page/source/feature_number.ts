// The value of a number: a slider and a box that always say the value in use, and what is wrong where they cannot.

import type { Cell, Column } from "./contract";
import { fresh, h } from "./dom";
import { state } from "./state";
import { cell, withUnit } from "./words";

// Beyond it whole numbers lose their last digit, and the server refuses them.
const LARGEST = 5e14;

export function numberValue(entry: Column, put: (value: Cell) => void): HTMLElement {
  const slider = makeSlider(entry);
  const box = makeBox(entry);
  const note = h("p", { class: "value-note", role: "status", id: fresh("note") });
  box.setAttribute("aria-describedby", note.id);
  const tell = (words: string): void => {
    if (words !== note.textContent) note.textContent = words;
    if (words) box.setAttribute("aria-invalid", "true");
    else box.removeAttribute("aria-invalid");
  };
  const use = (value: Cell): void => {
    if (value !== null) slider.value = String(value);
    slider.setAttribute("aria-valuetext", withUnit(entry, value));
    tell(outside(entry, value));
    put(value);
  };
  const typed = (): void => {
    const found = read(entry, box);
    if (typeof found === "string") tell(`${found}: ${cell(entry, state.set[entry.name])} is used`);
    else use(found);
  };
  // Whoever leaves the box finds there what the model is asked about, whatever was typed.
  const settle = (): void => {
    box.value = shown(state.set[entry.name]);
    tell(outside(entry, state.set[entry.name] ?? null));
  };
  slider.addEventListener("input", () => {
    const value = fit(entry, Number(slider.value));
    box.value = String(value);
    use(value);
  });
  box.addEventListener("input", typed);
  box.addEventListener("change", settle);
  box.addEventListener("blur", settle);
  tell(outside(entry, state.set[entry.name] ?? null));
  const unit = entry.unit ? h("span", { class: "unit", title: entry.unit }, entry.unit) : null;
  return h("div", { class: "value number" }, slider, h("span", { class: "box" }, box, unit), note);
}

/** The value that a box holds, or in words why it holds none. */
function read(entry: Column, box: HTMLInputElement): number | null | string {
  if (box.validity.badInput) return "Not a number";
  // A box is empty for a moment while somebody types; only where the person has no value, none means missing.
  if (box.value === "") return state.person.values[entry.name] === null ? null : "Empty";
  const given = Number(box.value);
  return Math.abs(given) <= LARGEST ? fit(entry, given) : "Too large";
}

/** Where the column's stated limits are and the value is not among them; a code for "no record" is none of them. */
function outside(entry: Column, value: Cell): string {
  const [low, high] = (entry.domain ?? [null, null]).map((end) => (typeof end === "number" ? end : null));
  if (typeof value !== "number" || entry.special.includes(value)) return "";
  const wrong = (low != null && value < low) || (high != null && value > high);
  if (!wrong) return "";
  if (low == null) return `above ${cell(entry, high)}`;
  return high == null ? `below ${cell(entry, low)}` : `outside ${cell(entry, low)} to ${cell(entry, high)}`;
}

function shown(value: Cell | undefined): string {
  return value === null || value === undefined ? "" : String(value);
}

/** 0.30000000000000004 is what a slider of step 0.1 says; nobody means it. */
function fit(entry: Column, value: number): number {
  return entry.kind === "integer" ? Math.round(value) : Number(value.toPrecision(12));
}

function makeBox(entry: Column): HTMLInputElement {
  return h("input", {
    type: "number",
    step: "any",
    "aria-label": `Value of ${entry.name}${entry.unit ? ` in ${entry.unit}` : ""}`,
    placeholder: state.person.values[entry.name] === null ? "missing" : "",
    value: shown(state.set[entry.name]),
    "data-key": `number-${entry.name}`,
  });
}

function makeSlider(entry: Column): HTMLInputElement {
  const [low, high] = ends(entry);
  const step = stepOf(entry, [low, high]);
  const here = state.set[entry.name];
  const slider = h("input", {
    type: "range",
    min: Math.floor(low / step) * step,
    max: Math.ceil(high / step) * step,
    step,
    "aria-label": `Value of ${entry.name}`,
    "aria-valuetext": withUnit(entry, here),
    "data-key": `value-${entry.name}`,
  });
  // After its ends and step: a slider clamps its value to the ends it has.
  slider.value = String(typeof here === "number" ? here : low);
  return slider;
}

/** The slider's ends: the bulk of the training rows, and further if the person stands outside of it. */
function ends(entry: Column): [number, number] {
  const stand = [state.person.values[entry.name], state.set[entry.name]].filter((value) => typeof value === "number");
  const seen = stand.filter((value) => !entry.special.includes(value));
  const [low, high] = entry.range ?? [0, 1];
  const least = Math.min(low, ...seen);
  const most = Math.max(high, ...seen);
  return [least, most > least ? most : least + 1];
}

function stepOf(entry: Column, [low, high]: [number, number]): number {
  if (entry.step) return entry.step;
  if (entry.kind === "integer") return 1;
  if (entry.decimals !== null) return 10 ** -Math.min(entry.decimals, 6);
  // Two hundred positions are finer than a hand on a slider.
  return 10 ** Math.floor(Math.log10((high - low) / 200 || 1));
}
