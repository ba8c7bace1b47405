// What the JSON API (version 1) sends and takes. The server checks; these types only say what to expect.

export type Cell = string | number | boolean | null;
/** A class of the model: names mostly, but 0 and 1 or yes and no are classes too. */
export type Class = string | number | boolean;
export type Row = Record<string, Cell>;
export type Which = "main" | "against";

export interface Model {
  name: string;
  sha256: string;
  classes: Class[];
  wanted: Class | null;
  gated: boolean;
  /** How sure plans are by themselves; null: just enough for the decision. */
  confidence?: number | null;
  /** How many models say whether plans last; absent without any. */
  witnesses?: number;
  /** The share of them that should accept plans, unless a question says otherwise. */
  lasting?: number;
  facts: [string, string][];
}

export interface About {
  api: number;
  version: string;
  model: Model;
  against: Model | null;
  data: { name: string; rows: number; total: number; labelled: boolean; truncated: boolean; columns?: string[] } | null;
  limits: { rows: number; options: number; body: number; seconds: number; audited?: number };
  audit: boolean;
  receipts: boolean;
}

export interface Column {
  name: string;
  kind: "numeric" | "integer" | "ordinal" | "binary" | "categorical" | "pixel";
  unit: string | null;
  mutability: "both" | "none" | "increase" | "decrease";
  /** The same in words: "may only rise". */
  may: string;
  domain: [number | string | null, number | string | null] | null;
  range: [number, number] | null;
  categories: Cell[] | null;
  allowed: Cell[] | null;
  step: number | null;
  decimals: number | null;
  /** Whether large numbers have thousands separators: years and codes have none. */
  grouped: boolean;
  max_change: number | null;
  difficulty: number;
  special: number[];
  follows: boolean;
  typical: Cell;
}

export interface Schema {
  columns: Column[];
  relations: string[];
  /** What each rule of a question means, by its field. */
  rules: Record<string, string>;
}

export interface Individual {
  row: number;
  values: Row;
  decision: Class;
  confidence: number;
  label: Class | null;
}

export type Filter = { column: string; between: [number | null, number | null] } | { column: string; in: Cell[] };

export interface RowsQuery {
  offset?: number;
  limit?: number;
  sort?: string;
  descending?: boolean;
  decision?: Class | null;
  search?: string | null;
  filters?: Filter[];
}

export interface RowsPage {
  total: number;
  offset: number;
  rows: Individual[];
}

export interface Prediction {
  decision: Class;
  confidence: number;
  probabilities: Record<string, number>;
  plausibility: Record<string, number> | null;
  notes: string[];
}

/** What one asks: the part of an explain request that is neither rows nor machinery, and that a receipt keeps. */
export interface Question {
  target: Class | null;
  confidence: number | null;
  lock: string[];
  domain: Record<string, (Cell | null)[]>;
  difficulty: Record<string, number>;
  max_changes: number | null;
}

export interface Change {
  column: string;
  from: Cell;
  to: Cell;
  change: number | null;
  unit: string | null;
  cost: number;
  follows: boolean;
}

export interface Plan {
  option: number;
  status: "converged" | "already_there" | "exhausted" | "infeasible" | "implausible";
  answered: boolean;
  sentence: string;
  cost: number;
  changed: number;
  prediction: Class;
  confidence: number;
  plausibility: number | null;
  percentile: number | null;
  values: Row;
  changes: Change[];
  binding: { column: string; reason: string }[];
}

export interface Answer {
  row: number;
  decision: Class;
  confidence: number;
  target: Class;
  plans: Plan[];
  notes: string[];
}

export interface Explained {
  complete: boolean;
  model: string;
  seconds: number;
  answers: Answer[];
}

export interface Axis {
  title: string;
  column: string | null;
  ticks: { at: number; label: string }[];
  min: number;
  max: number;
}

export interface MapAnswer {
  axes: [Axis, Axis];
  grid: { x: number[]; y: number[]; decision: number[][]; confidence: number[][] };
  people: { x: number; y: number; decision: number; row: number }[];
  person: { x: number; y: number; decision: number };
  paths: [number, number][][];
}

export interface Check {
  name: string;
  passed: boolean;
  message: string;
}

export interface Verdict {
  valid: boolean;
  checks: Check[];
}
