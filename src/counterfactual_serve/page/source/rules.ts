// Rules of the question: how they are kept, what is sent, and how they read.

import type { Cell, Column, Question } from "./contract";
import { type ColumnRules, column, startRow, state } from "./state";
import { cell, count, listed, percent, quoted, withUnit } from "./words";

export const DIFFICULTIES: [number, string][] = [
  [0.5, "easy"],
  [1, "usual"],
  [2, "hard"],
  [5, "very hard"],
];

const FREE: ColumnRules = { lock: false, low: null, high: null, allowed: null, difficulty: 1 };

export function rulesOf(name: string): ColumnRules {
  return state.rules.get(name) ?? FREE;
}

/** Change a rule; a column without any leaves the book, so that its size is the number of columns with rules. */
export function setRule(name: string, change: Partial<ColumnRules>): void {
  const next = { ...rulesOf(name), ...change };
  const free = !next.lock && next.low === null && next.high === null && next.allowed === null && next.difficulty === 1;
  if (free) state.rules.delete(name);
  else state.rules.set(name, next);
}

/** What a rule of the question means, as a sentence of the server's: the page describes no rule itself. */
export function meaning(field: keyof Question): string {
  const said = state.schema.rules[field] ?? "";
  return said && `${said[0]!.toUpperCase()}${said.slice(1)}.`;
}

/** Why plans never change a column, whatever the question says; `null` if they may. */
export function heldBy(entry: Column): string | null {
  if (entry.follows) return "only follows other columns";
  if (entry.mutability === "none") return entry.may;
  return null;
}

/** Numbers take an interval, ordered categories an interval of levels, other categories a list. */
export function takesInterval(entry: Column): boolean {
  return !entry.categories || entry.kind === "ordinal";
}

/** A lower end above the upper one allows nothing; it is shown, and not sent. */
export function contradicts(entry: Column, { low, high }: ColumnRules): boolean {
  if (low === null || high === null) return false;
  const order = (value: Cell): number => (entry.categories ? entry.categories.indexOf(value) : Number(value));
  return order(low) > order(high);
}

/** The question as the server takes it. */
export function question(): Question {
  const found: Question = {
    target: state.target,
    confidence: state.confidence,
    lock: [],
    domain: {},
    difficulty: {},
    max_changes: state.maxChanges,
  };
  for (const [name, rules] of state.rules) {
    const entry = column(name);
    if (!entry || heldBy(entry)) continue;
    if (rules.lock) found.lock.push(name);
    else addOpen(found, entry, rules);
  }
  return found;
}

/** Rules of a column that is not locked; a locked one needs no range. */
function addOpen(found: Question, entry: Column, rules: ColumnRules): void {
  if (takesInterval(entry)) {
    const stated = rules.low !== null || rules.high !== null;
    if (stated && !contradicts(entry, rules)) found.domain[entry.name] = [rules.low, rules.high];
  } else if (rules.allowed) found.domain[entry.name] = rules.allowed;
  if (rules.difficulty !== 1) found.difficulty[entry.name] = entry.difficulty * rules.difficulty;
}

/** Whether two questions ask the same, so that the plans shown still answer the rules shown. */
function same(a: Question, b: Question): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

/** Whether the plans shown answer another question than the cards and fields now ask. */
export function stale(): boolean {
  const { asked } = state;
  return (
    asked !== null &&
    !(
      same(asked.question, question()) &&
      asked.lasting === state.lasting &&
      JSON.stringify(asked.row) === JSON.stringify(startRow())
    )
  );
}

/** A question in words, one phrase per rule. */
export function inWords(asked: Question, lasting: number | null = null): string[] {
  const said: string[] = [asked.target === null ? "another decision" : `decision ${quoted(asked.target)}`];
  if (asked.confidence !== null) said.push(`at least ${percent(asked.confidence)} sure`);
  if (lasting) said.push(`lasting in ${percent(lasting)} of refits`);
  else if (lasting === 0) said.push("just enough today");
  if (asked.max_changes !== null) said.push(`at most ${count(asked.max_changes, "change")}`);
  if (asked.lock.length) said.push(`${listed(asked.lock, 6)} locked`);
  for (const [name, range] of Object.entries(asked.domain)) said.push(rangeInWords(name, range));
  for (const [name, weight] of Object.entries(asked.difficulty))
    said.push(`${name} ${difficultyInWords(name, weight)}`);
  return said;
}

function rangeInWords(name: string, range: Cell[]): string {
  const entry = column(name);
  if (entry && !takesInterval(entry))
    return `${name} only ${listed(
      range.map((value) => cell(entry, value)),
      5,
    )}`;
  const [low = null, high = null] = range;
  if (high === null) return `${name} from ${withUnit(entry, low)}`;
  if (low === null) return `${name} up to ${withUnit(entry, high)}`;
  return `${name} ${cell(entry, low)} to ${withUnit(entry, high)}`;
}

function difficultyInWords(name: string, weight: number): string {
  const factor = weight / (column(name)?.difficulty || 1);
  const known = DIFFICULTIES.find(([value]) => Math.abs(value - factor) < 1e-9);
  return `${known ? known[1] : `${factor} times as hard`} to change`;
}
