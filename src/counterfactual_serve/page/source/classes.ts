// Classes of the model: which tone and which shape stand for each, everywhere on the page.

import { h, s } from "./dom";
import { classes, state } from "./state";
import type { Class } from "./contract";
import { named, percent } from "./words";

const TONES = 6;

/** The tone of a class: the wanted one has the first, the others follow in the model's order. */
export function tone(index: number): number {
  const wanted = classes().findIndex((one) => one === state.about.model.wanted);
  if (wanted < 0) return index % TONES;
  return index === wanted ? 0 : (index < wanted ? index + 1 : index) % TONES;
}

export function toneOf(name: Class): number {
  return tone(Math.max(0, classes().indexOf(name)));
}

/** A dot for a class: shape and colour, so that neither has to be told apart alone. */
export function mark(at: number, x: number, y: number, size: number): SVGElement {
  const shape = at % 4;
  if (shape === 0) return s("circle", { cx: x, cy: y, r: size });
  if (shape === 1) return s("rect", { x: x - size * 0.9, y: y - size * 0.9, width: size * 1.8, height: size * 1.8 });
  const points: [number, number][] =
    shape === 2
      ? [
          [0, -1.25],
          [1.15, 0.9],
          [-1.15, 0.9],
        ]
      : [
          [0, -1.3],
          [1.3, 0],
          [0, 1.3],
          [-1.3, 0],
        ];
  return s("polygon", { points: points.map(([dx, dy]) => `${x + dx * size},${y + dy * size}`).join(" ") });
}

/** The mark on its own, as it stands beside the name of a class. */
export function symbol(name: Class): SVGElement {
  const drawn = mark(toneOf(name), 6, 6, 4);
  return s("svg", { class: `symbol tone-${toneOf(name)}`, viewBox: "0 0 12 12", "aria-hidden": "true" }, drawn);
}

/** A decision, as it stands in tables and headings. */
export function chip(name: Class): HTMLElement {
  return h(
    "span",
    { class: `chip tone-${toneOf(name)}` },
    symbol(name),
    h("span", { class: "name", title: named(name).length > 16 ? named(name) : null }, named(name)),
  );
}

/** How sure the model is: a number with a bar behind it. */
export function certainty(name: Class, confidence: number): HTMLElement {
  const bar = h("span", { class: `bar tone-${toneOf(name)}`, "aria-hidden": "true" }, h("i"));
  (bar.firstElementChild as HTMLElement).style.width = `${Math.round(confidence * 100)}%`;
  return h("span", { class: "certainty" }, bar, h("span", { class: "figure" }, percent(confidence)));
}
