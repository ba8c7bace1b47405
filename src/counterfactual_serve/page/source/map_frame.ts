// The frame of the map: from values to pixels, and the axes with their labels.

import type { Axis } from "./contract";
import { s } from "./dom";

export type Scale = (value: number) => number;
export interface Frame {
  left: number;
  top: number;
  right: number;
  bottom: number;
  x: Scale;
  y: Scale;
}

const INSET = 14;

export function makeFrame([across, up]: [Axis, Axis], wide: number, high: number): Frame {
  const longest = Math.max(...up.ticks.map((tick) => short(tick.label, wide).length), 2);
  const left = Math.min(36 + longest * 6.9, wide * 0.36);
  const bottom = high - (slanted(across, wide) ? 84 : 46);
  const [top, right] = [12, wide - 12];
  const span = (axis: Axis): number => axis.max - axis.min || 1;
  // A margin inside of the frame: most people have the smallest capital gain, and would stand on its edge.
  const [x0, x1, y0, y1] = [left + INSET, right - INSET, bottom - INSET, top + INSET];
  return {
    left,
    top,
    right,
    bottom,
    x: (value) => x0 + ((clamp(value, across) - across.min) / span(across)) * (x1 - x0),
    y: (value) => y0 - ((clamp(value, up) - up.min) / span(up)) * (y0 - y1),
  };
}

/** Somebody beyond the ends of an axis stands at its edge rather than outside of the picture. */
function clamp(value: number, axis: Axis): number {
  return Math.min(Math.max(value, axis.min), axis.max);
}

function short(label: string, wide: number): string {
  const most = wide < 560 ? 10 : 18;
  return label.length > most ? `${label.slice(0, most - 1)}…` : label;
}

/** Labels that would run into each other are turned. */
function slanted(axis: Axis, wide: number): boolean {
  const letters = axis.ticks.reduce((sum, tick) => sum + short(tick.label, wide).length + 2, 0);
  return letters * 7 > wide * 0.8;
}

export function axes([across, up]: [Axis, Axis], { left, right, top, bottom, x, y }: Frame): SVGElement {
  const wide = right + 12;
  const turn = slanted(across, wide);
  const room = (right - left) / Math.max(across.ticks.length, 1);
  // Of very many labels only every second, third … is written.
  const every = turn ? Math.max(1, Math.ceil(15 / room)) : 1;
  const everyUp = Math.max(1, Math.ceil((15 * up.ticks.length) / (bottom - top)));
  const below = across.ticks
    .filter((_, i) => i % every === 0)
    .map(({ at, label }) =>
      s(
        "text",
        turn
          ? { transform: `translate(${x(at) + 4} ${bottom + 14}) rotate(-40)`, "text-anchor": "end" }
          : { x: x(at), y: bottom + 17, "text-anchor": "middle" },
        short(label, wide),
        s("title", {}, label),
      ),
    );
  const beside = up.ticks
    .filter((_, i) => i % everyUp === 0)
    .map(({ at, label }) =>
      s("text", { x: left - 7, y: y(at) + 4, "text-anchor": "end" }, short(label, wide), s("title", {}, label)),
    );
  const height = turn ? bottom + 78 : bottom + 38;
  return s(
    "g",
    { class: "axes" },
    s("rect", { x: left, y: top, width: right - left, height: bottom - top, class: "frame" }),
    below,
    beside,
    s("text", { x: (left + right) / 2, y: height, "text-anchor": "middle", class: "axis-title" }, across.title),
    s(
      "text",
      { transform: `translate(13 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle", class: "axis-title" },
      up.title,
    ),
  );
}
