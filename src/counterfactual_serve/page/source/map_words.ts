// The map in words and as a table, for those who do not see the picture or use no mouse.

import { chip } from "./classes";
import type { Class, MapAnswer, Plan } from "./contract";
import { button, h, scroller } from "./dom";
import { chooseRow } from "./people";
import { classes, column, state } from "./state";
import { cell, count, listed, named, number } from "./words";

const NEAREST = 10;
let open = false;

/** The picture in words. */
export function summary(found: MapAnswer): string {
  const cells = found.grid.decision.flat();
  const shares = classes()
    .map((of, i): [string, number] => [named(of), cells.filter((value) => value === i).length / cells.length])
    .filter(([, share]) => share > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([name, share]) => `‘${name}’ on ${number(100 * share, 0)}% of the map`);
  const [x, y] = found.axes;
  const slice =
    found.axes[0].column === null
      ? "The axes are the two directions in which people of the data differ most; what they do not tell is as this person's."
      : "All other values are as this person's.";
  return `${x.title} across, ${y.title} up. The model decides ${listed(shares)}. ${slice}`;
}

function place(found: MapAnswer, axis: 0 | 1, value: number): string {
  const { column: name, ticks } = found.axes[axis];
  const entry = name === null ? undefined : column(name);
  if (entry?.categories) return ticks.find((tick) => tick.at === Math.round(value))?.label ?? number(value, 2);
  return entry ? cell(entry, value) : number(value, 2);
}

export function asTable(found: MapAnswer, drawnPlans: Plan[]): HTMLElement {
  const line = (title: string, x: number, y: number, decision: Class): HTMLElement =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, title),
      h("td", {}, place(found, 0, x)),
      h("td", {}, place(found, 1, y)),
      h("td", {}, chip(decision)),
    );
  const ends = found.paths.map((path, i) => {
    const [x, y] = path.at(-1)!;
    return line(`Plan ${drawnPlans[i]?.option ?? i + 1}`, x, y, drawnPlans[i]?.prediction ?? "");
  });
  const { x, y, decision } = found.person;
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "Point"),
    h("th", { scope: "col" }, found.axes[0].title),
    h("th", { scope: "col" }, found.axes[1].title),
    h("th", { scope: "col" }, "Decision"),
  );
  return h(
    "details",
    {
      class: "map-table",
      open,
      on: { toggle: (event) => (open = (event.target as HTMLDetailsElement).open) },
    },
    h("summary", { "data-key": "map-table" }, "The map as a table"),
    scroller(
      "Points on the map",
      {},
      h(
        "table",
        {},
        h("caption", { class: "unseen" }, "Points on the map"),
        h("thead", {}, head),
        h("tbody", {}, line(state.person.title, x, y, classes()[decision] ?? ""), ends),
      ),
    ),
    found.people.length ? neighbours(found) : null,
  );
}

/** The people nearest to the person on the map, as buttons: what a click on a dot does, for the keyboard. */
function neighbours(found: MapAnswer): HTMLElement {
  const [width, height] = found.axes.map((axis) => axis.max - axis.min || 1) as [number, number];
  const far = (p: { x: number; y: number }): number =>
    Math.hypot((p.x - found.person.x) / width, (p.y - found.person.y) / height);
  const near = found.people
    .filter((p) => p.row !== state.person.row)
    .sort((a, b) => far(a) - far(b))
    .slice(0, NEAREST);
  const lines = near.map((p) =>
    h(
      "li",
      {},
      button(`Row ${p.row}`, () => void chooseRow(p.row), { class: "small", "data-key": `near-${p.row}` }),
      h("span", {}, `${place(found, 0, p.x)}, ${place(found, 1, p.y)}`),
      chip(classes()[p.decision] ?? ""),
    ),
  );
  return h(
    "div",
    {},
    h("h3", {}, `The ${count(near.length, "nearest person", "nearest people")} on the map`),
    h("ul", { class: "near" }, lines),
  );
}
