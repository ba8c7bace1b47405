// What the page knows: the model, the chosen person, the question's rules, and the answer. Panels listen for changes.

import type { About, Answer, Cell, Class, Column, Individual, Question, Row, Schema } from "./contract";

/** The rules of one column that the user set; absent means: as the model's rules have it. */
export interface ColumnRules {
  lock: boolean;
  low: Cell;
  high: Cell;
  allowed: Cell[] | null;
  /** Times the difficulty that the schema states. */
  difficulty: number;
}

export interface Person {
  title: string;
  row: number | null;
  values: Row;
  label: Class | null;
}

/** An answered question, kept together so that the plans shown always stand beside the rules they follow. */
export interface Asked {
  row: Row;
  title: string;
  question: Question;
  /** As in State. */
  lasting: number | null;
  answer: Answer;
  complete: boolean;
  seconds: number;
}

export type Start = "real" | "set";

interface State {
  about: About;
  schema: Schema;
  person: Person;
  /** Values on the feature cards: the person's, unless somebody moved them. */
  set: Row;
  start: Start;
  rules: Map<string, ColumnRules>;
  target: Class | null;
  confidence: number | null;
  options: number;
  maxChanges: number | null;
  /** The share of witnesses that should accept plans; 0: just enough; null: there are none. */
  lasting: number | null;
  asked: Asked | null;
}

/** Filled by `begin` before any panel is built. */
export const state = {} as State;

/** `cards`: values or rules were set elsewhere, and the feature cards have to show them. */
export type Topic = "person" | "values" | "rules" | "cards" | "asked" | "kept";
const listeners = new Map<Topic, (() => void)[]>();

export function on(topic: Topic, listener: () => void): void {
  listeners.set(topic, [...(listeners.get(topic) ?? []), listener]);
}

export function emit(topic: Topic): void {
  remember();
  listeners.get(topic)?.forEach((listener) => listener());
}

export function begin(about: About, schema: Schema): void {
  Object.assign(state, {
    about,
    schema,
    rules: new Map(),
    confidence: null,
    options: 3,
    maxChanges: null,
    lasting: about.model.lasting ?? null,
    asked: null,
  });
  state.options = Math.min(3, about.limits.options);
  state.target = about.model.wanted;
  put(typical());
  recall();
}

export function column(name: string): Column | undefined {
  return state.schema.columns.find((entry) => entry.name === name);
}

/** A made-up person to start from where there are no rows to choose from. */
function typical(): Person {
  const values = Object.fromEntries(state.schema.columns.map((entry) => [entry.name, entry.typical]));
  return { title: "A typical person", row: null, values, label: null };
}

function put(person: Person): void {
  state.person = person;
  state.set = { ...person.values };
  // Somebody made up is described by the cards; of a real row, they only try values out.
  state.start = person.row === null ? "set" : "real";
  state.asked = null;
}

export function choose(found: Individual): void {
  put({ title: `Row ${found.row}`, row: found.row, values: found.values, label: found.label });
  emit("person");
}

/** Columns whose value on the card is not the person's own. */
export function moved(): string[] {
  return Object.keys(state.set).filter((name) => state.set[name] !== state.person.values[name]);
}

/** The row that plans start from. */
export function startRow(): Row {
  return state.start === "set" ? { ...state.set } : { ...state.person.values };
}

export function classes(): Class[] {
  return state.about.model.classes;
}

// --- what survives a reload of the page, per model and for this tab only -----------------------------------------

function storageKey(): string {
  return `ct.state.${state.about.model.sha256}`;
}

function remember(): void {
  const { person, set, start, target, confidence, options, maxChanges, lasting } = state;
  const kept = { person, set, start, target, confidence, options, maxChanges, lasting, rules: [...state.rules] };
  try {
    sessionStorage.setItem(storageKey(), JSON.stringify(kept));
  } catch {
    // Storage may be full or switched off; then a reload starts anew.
  }
}

function recall(): void {
  const text = sessionStorage.getItem(storageKey());
  if (!text) return;
  try {
    const { rules, ...rest } = JSON.parse(text) as Partial<State> & { rules: [string, ColumnRules][] };
    const known = new Set(state.schema.columns.map((entry) => entry.name));
    // The same model file has the same columns; anything else was written by something else.
    if (!rest.person || Object.keys(rest.person.values).some((name) => !known.has(name))) return;
    Object.assign(state, rest, { rules: new Map(rules) });
  } catch {
    sessionStorage.removeItem(storageKey());
  }
}
