// Numbers, values and lists as people write them.

import type { Cell, Class, Column } from "./contract";

const PLACES = 4;
const formats = new Map<string, Intl.NumberFormat>();

/** 1234.5 → "1,234.5", or "1234.5" if not grouped; without trailing zeros. */
export function number(value: number, decimals = PLACES, grouped = true): string {
  const places = Math.min(Math.max(decimals, 0), 12);
  const key = `${places} ${grouped}`;
  const options = { maximumFractionDigits: places, useGrouping: grouped };
  if (!formats.has(key)) formats.set(key, new Intl.NumberFormat("en-US", options));
  // A real minus sign is as wide as a digit, and "-0" is 0.
  return formats
    .get(key)!
    .format(value + 0 || 0)
    .replace("-", "−");
}

/** Three digits that matter: for numbers of unknown size, such as costs and measures. */
export function brief(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return number(value, size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 || size === 0 ? 2 : 3);
}

/** A share in per cent, cut off: no confidence is rounded up, and neither "0%" nor "100%" is said of what is not certain. */
export function percent(share: number): string {
  if (share > 0 && share < 0.01) return "under 1%";
  if (share > 0.99 && share < 1) return "over 99%";
  return `${Math.floor(share * 100 + 1e-6)}%`;
}

/** How sure the model is, in a sentence. */
export function sure(confidence: number): string {
  return `${percent(confidence)} sure`;
}

/** A value of a column, without its unit. */
export function cell(column: Column | undefined, value: Cell | undefined): string {
  if (value === null || value === undefined) return "missing";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value;
  // Categories that are numbers (years, codes) are names: no thousands separators.
  if (column?.categories) return String(value);
  if (isCode(column, value)) return `no record (${number(value, PLACES, column?.grouped ?? true)})`;
  return number(value, column?.decimals ?? PLACES, column?.grouped ?? true);
}

/** Whether a value is a code of its column, such as -9 for "no record". */
function isCode(column: Column | undefined, value: Cell): boolean {
  return typeof value === "number" && !column?.categories && (column?.special.includes(value) ?? false);
}

/** A value with its unit: "40 hours", "1 hour". */
export function withUnit(column: Column | undefined, value: Cell | undefined, unit = column?.unit): string {
  const text = cell(column, value);
  if (!unit || value === null || value === undefined || isCode(column, value)) return text;
  // "1 hours" reads wrong; but symbols such as "ms" and words such as "glass" keep their s.
  const one = text === "1" && unit.length > 3 && /^[a-z]+s$/i.test(unit) && !unit.endsWith("ss");
  return `${text} ${one ? unit.slice(0, -1) : unit}`;
}

/** "a", "a and b", "a, b and c"; of more than `most`, how many more. */
export function listed(parts: string[], most = Infinity): string {
  const shown = parts.length > most ? [...parts.slice(0, most), `${parts.length - most} more`] : parts;
  if (shown.length < 2) return shown.join("");
  return `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}`;
}

/** "1 plan", "3 plans". */
export function count(many: number, one: string, several = `${one}s`): string {
  return `${number(many, 0)} ${many === 1 ? one : several}`;
}

/** The name of a class. */
export function named(of: Class): string {
  if (typeof of === "boolean") return of ? "yes" : "no";
  return String(of);
}

/** ‘>50K’: classes in running text stand in quotes. */
export function quoted(of: Class): string {
  return `‘${named(of)}’`;
}

/** Now, in the reader's own time: "17 November 2025, 16:41". */
export function today(): string {
  return new Date().toLocaleString("en-GB", { dateStyle: "long", timeStyle: "short" });
}
