// A bar with its interval, as a small SVG that tables, print and export share.

import { s } from "./dom";

/** The colour of a series, as a square. */
export function swatch(series: number): SVGElement {
  return s(
    "svg",
    { viewBox: "0 0 10 10", "aria-hidden": "true" },
    s("rect", { class: `series-${series}`, width: 10, height: 10, rx: 2 }),
  );
}

const WIDTH = 160;
const HEIGHT = 16;

/** A bar from 0 to `value` on a scale that ends at `most`; the whisker is the interval. The number stands beside it. */
export function intervalBar(
  value: number | null,
  low: number | null,
  high: number | null,
  most: number,
  series: number,
): SVGElement {
  const x = (at: number): number => 1 + (Math.min(Math.max(at, 0), most) / most) * (WIDTH - 2);
  const middle = HEIGHT / 2;
  const whisker =
    low !== null && high !== null
      ? `M${x(low)} ${middle}H${x(high)}M${x(low)} ${middle - 4}v8M${x(high)} ${middle - 4}v8`
      : null;
  return s(
    "svg",
    { class: "interval-bar", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true" },
    s("rect", { class: "track", x: 0, y: 3, width: WIDTH, height: HEIGHT - 6, rx: 3 }),
    value === null
      ? null
      : s("rect", { class: `series-${series}`, x: 0, y: 3, width: x(value), height: HEIGHT - 6, rx: 3 }),
    whisker ? s("path", { class: "whisker", d: whisker }) : null,
  );
}
