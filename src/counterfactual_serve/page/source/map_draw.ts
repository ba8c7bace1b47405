// The map as SVG: decision regions shaded by certainty, people as dots, the person, and the numbered paths of plans.

import { mark, tone } from "./classes";
import type { Axis, MapAnswer } from "./contract";
import { type Child, h, s } from "./dom";
import { axes, type Frame, makeFrame, type Scale } from "./map_frame";
import { classes } from "./state";
import { named } from "./words";

// Pixels around a click in which the nearest dot is meant: fingers are not precise.
const REACH = 16;

export function drawMap(
  found: MapAnswer,
  width: number,
  labels: string[],
  title: string,
  words: string,
  choose: (row: number) => void,
): SVGElement {
  const wide = Math.max(280, Math.min(width, 1000));
  const high = Math.round(wide * (wide < 560 ? 1.05 : 0.62));
  const frame = makeFrame(found.axes, wide, high);
  const dots = spread(found, frame);
  const picture = s(
    "svg",
    {
      class: "map",
      viewBox: `0 0 ${wide} ${high}`,
      width: wide,
      height: high,
      role: "img",
      "aria-label": `Map. ${words}`,
    },
    regions(found, frame),
    borders(found, frame),
    axes(found.axes, frame),
    s(
      "g",
      { class: "people" },
      dots.map(({ x, y, decision, row }) => dot(x, y, decision, row)),
    ),
    found.paths.map((path, i) => route(path, frame, labels[i] ?? String(i + 1), i)),
    person(found, frame, title),
  );
  picture.addEventListener("click", (event) => {
    const box = picture.getBoundingClientRect();
    const [px, py] = [((event.clientX - box.left) / box.width) * wide, ((event.clientY - box.top) / box.height) * high];
    const near = dots
      .map((p) => ({ row: p.row, far: Math.hypot(p.x - px, p.y - py) }))
      .sort((a, b) => a.far - b.far)[0];
    if (near && near.far <= REACH) choose(near.row);
  });
  return picture;
}

/** Edges of cells in pixels: halfway between centres, the frame outside; whole, or seams would show between cells. */
function edges(centres: number[], scale: Scale, first: number, last: number): number[] {
  const inner = centres.slice(1).map((value, i) => Math.round(scale((value + centres[i]!) / 2)));
  return [Math.round(first), ...inner, Math.round(last)];
}

function cellEdges({ grid }: MapAnswer, frame: Frame): [number[], number[]] {
  return [edges(grid.x, frame.x, frame.left, frame.right), edges(grid.y, frame.y, frame.bottom, frame.top)];
}

function regions(found: MapAnswer, frame: Frame): SVGElement {
  const { grid } = found;
  const [ex, ey] = cellEdges(found, frame);
  const chance = 1 / classes().length;
  const cells = grid.decision.flatMap((line, iy) =>
    line.map((decision, ix) => {
      const sure = ((grid.confidence[iy]?.[ix] ?? 1) - chance) / (1 - chance);
      return s("rect", {
        x: ex[ix],
        y: ey[iy + 1],
        width: ex[ix + 1]! - ex[ix]!,
        height: ey[iy]! - ey[iy + 1]!,
        class: `fill-${tone(decision)}`,
        // A tie is pale, a clear case strong; never so strong that dots drown.
        "fill-opacity": (0.06 + 0.34 * Math.max(0, sure)).toFixed(2),
      });
    }),
  );
  return s("g", { class: "regions", "shape-rendering": "crispEdges" }, cells);
}

/** Lines where the decision turns: the regions can then be told apart without colour. */
function borders(found: MapAnswer, frame: Frame): SVGElement {
  const { grid } = found;
  const [ex, ey] = cellEdges(found, frame);
  let path = "";
  grid.decision.forEach((line, iy) =>
    line.forEach((decision, ix) => {
      const [x, y] = [ex[ix + 1]!, ey[iy + 1]!];
      if (ix + 1 < line.length && line[ix + 1] !== decision) path += `M${x} ${ey[iy]}V${y}`;
      const above = grid.decision[iy + 1]?.[ix];
      if (above !== undefined && above !== decision) path += `M${ex[ix]} ${y}H${x}`;
    }),
  );
  return s("path", { class: "border", d: path || "M0 0" });
}

interface Dot {
  x: number;
  y: number;
  decision: number;
  row: number;
}

/** People in pixels. On an axis of categories they are spread a little, or hundreds would stand on one spot. */
function spread({ people, axes: [across, up] }: MapAnswer, frame: Frame): Dot[] {
  const wiggle = (row: number, salt: number): number => (((row * 2654435761 + salt * 40503) >>> 0) % 1000) / 1000 - 0.5;
  const discrete = (axis: Axis): boolean =>
    axis.ticks.length > 1 && Math.abs(axis.max - axis.min - axis.ticks.length) < 1e-6;
  const [dx, dy] = [discrete(across) ? 0.6 : 0, discrete(up) ? 0.6 : 0];
  return people.map((p) => ({
    x: frame.x(p.x + dx * wiggle(p.row, 1)),
    y: frame.y(p.y + dy * wiggle(p.row, 2)),
    decision: p.decision,
    row: p.row,
  }));
}

function dot(x: number, y: number, decision: number, row: number): SVGElement {
  const drawn = mark(tone(decision), x, y, 3.4);
  drawn.setAttribute("class", `dot fill-${tone(decision)}`);
  drawn.append(s("title", {}, `Row ${row}: ${named(classes()[decision] ?? "")}`));
  return drawn;
}

function route(path: [number, number][], frame: Frame, label: string, index: number): SVGElement {
  const points = path.map(([px, py]): [number, number] => [frame.x(px), frame.y(py)]);
  const [end, before] = [points.at(-1)!, points.at(-2) ?? points[0]!];
  const length = Math.hypot(end[0] - before[0], end[1] - before[1]);
  const line = points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
  // Plans that move neither of the two columns end where they start; their numbers are fanned out to stay readable.
  const fan = length < 8;
  const angle = fan ? -0.9 + index * 0.9 : Math.atan2(end[1] - before[1], end[0] - before[0]);
  const [bx, by] = [end[0] + Math.cos(angle) * (fan ? 22 : 15), end[1] + Math.sin(angle) * (fan ? 22 : 15)];
  const [cx, cy] = [
    Math.min(Math.max(bx, frame.left + 10), frame.right - 10),
    Math.min(Math.max(by, frame.top + 10), frame.bottom - 10),
  ];
  return s(
    "g",
    { class: "route" },
    s("path", { class: "halo", d: line }),
    s("path", { class: "line", d: line }),
    fan ? null : arrow(end, angle),
    s("circle", { class: "number", cx, cy, r: 9 }),
    s("text", { x: cx, y: cy + 4, "text-anchor": "middle" }, label),
    s("title", {}, `Plan ${label}`),
  );
}

function arrow([x, y]: [number, number], angle: number): SVGElement {
  const wing = (turn: number): string =>
    `${(x - 10 * Math.cos(angle + turn)).toFixed(1)} ${(y - 10 * Math.sin(angle + turn)).toFixed(1)}`;
  return s("path", { class: "head", d: `M${wing(0.45)}L${x.toFixed(1)} ${y.toFixed(1)}L${wing(-0.45)}Z` });
}

function person({ person: { x, y, decision } }: MapAnswer, frame: Frame, title: string): SVGElement {
  const [cx, cy] = [frame.x(x), frame.y(y)];
  const drawn = mark(tone(decision), cx, cy, 5.5);
  drawn.setAttribute("class", `self fill-${tone(decision)}`);
  return s("g", { class: "person" }, s("circle", { cx, cy, r: 12, class: "ring" }), drawn, s("title", {}, title));
}

/** What shapes and shades mean. */
export function legend(found: MapAnswer, plans: boolean): HTMLElement {
  const present = new Set([
    ...found.grid.decision.flat(),
    ...found.people.map((p) => p.decision),
    found.person.decision,
  ]);
  const entry = (drawn: SVGElement[], words: Child): HTMLElement =>
    h(
      "li",
      {},
      s("svg", { class: "key", viewBox: "0 0 26 20", width: 26, height: 20, "aria-hidden": "true" }, drawn),
      words,
    );
  const kinds = [...present].sort().map((i) => {
    const dotted = mark(tone(i), 13, 10, 4);
    dotted.setAttribute("class", `dot fill-${tone(i)}`);
    return entry(
      [s("rect", { width: 26, height: 20, class: `fill-${tone(i)}`, "fill-opacity": 0.3 }), dotted],
      named(classes()[i] ?? ""),
    );
  });
  return h(
    "ul",
    { class: "legend" },
    kinds,
    entry([s("circle", { cx: 13, cy: 10, r: 8, class: "ring" })], "this person"),
    plans ? entry([s("path", { d: "M2 10H22", class: "line" }), arrow([24, 10], 0)], "a plan") : null,
    h("li", { class: "note" }, "The stronger the shade, the surer the model."),
    found.people.length ? h("li", { class: "note" }, "Click a dot to choose that person.") : null,
  );
}
