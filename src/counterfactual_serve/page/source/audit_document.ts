// The document of an audit, as the server sends it.

export interface Estimate {
  n: number;
  value: number | null;
  low: number | null;
  high: number | null;
  few?: boolean;
  clear?: boolean;
}
export interface OfGroup extends Estimate {
  group: string;
}
export interface Gap {
  highest: string;
  lowest: string;
  value: number;
  low: number;
  high: number;
  clear: boolean;
}
export interface Measure {
  id: string;
  title: string;
  meaning: string;
  formula: string;
  unit: string;
  models: { id: string; name: string; groups: OfGroup[]; gap: Gap | null }[];
  differences: OfGroup[];
}
export interface Guess extends Estimate {
  reason: string | null;
  information: { feature: string; value: number }[];
}
export interface Proxy {
  column: string;
  title: string;
  meaning: string;
  features: Guess;
  advice: (Guess & { name: string })[];
}
export interface Later {
  id: string;
  title: string;
  meaning: string;
  models: (Estimate & { name: string; draws: number })[];
}
export interface Audit {
  target: string;
  rows: number;
  level: number;
  models: { id: string; name: string; accuracy: number | null; denied: number; explained: number }[];
  columns: { column: string | null; title: string; groups: { group: string; rows: number }[]; measures: Measure[] }[];
  proxies: Proxy[];
  later: Later[];
  notes: string[];
  clear_findings: string[];
}
