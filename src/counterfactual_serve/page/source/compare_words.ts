// What differs between two models, in words.

import type { Answer, Model, Plan, Prediction } from "./contract";
import { brief, listed, quoted } from "./words";

export interface Side {
  model: Model;
  prediction: Prediction;
  answer: Answer;
  complete: boolean;
}

/** The cheapest plan of a side that reaches the target. The server counts the costs of both models by one ruler. */
export function best({ answer }: Side): Plan | undefined {
  const reaching = answer.plans.filter((plan) => plan.answered && plan.status !== "already_there");
  return reaching.sort((a, b) => a.cost - b.cost)[0];
}

/** What differs, in words. */
export function difference(sides: [Side, Side]): string {
  const [a, b] = sides;
  const names = sides.map(({ model }) => model.name) as [string, string];
  const same = a.prediction.decision === b.prediction.decision;
  const decided = same
    ? `Both models decide ${quoted(a.prediction.decision)}.`
    : `${names[0]} decides ${quoted(a.prediction.decision)}, ${names[1]} ${quoted(b.prediction.decision)}.`;
  const [p, q] = [best(a), best(b)];
  if (p && q) return `${decided} ${costs(p, q, names)} ${columnsOf(p, q, names)}`;
  const lacking = sides.filter((entry, i) => !(i ? q : p) && !already(entry)).map(({ model }) => model.name);
  if (!lacking.length) return decided;
  return `${decided} ${lacking.length === 2 ? "Neither has a plan within these rules." : `${lacking[0]} has no plan within these rules.`}`;
}

export function already({ answer }: Side): boolean {
  return answer.plans.some((plan) => plan.status === "already_there");
}

function costs(p: Plan, q: Plan, names: [string, string]): string {
  const [mine, theirs] = [p.cost, q.cost];
  const [low, high, cheaper] = mine <= theirs ? [mine, theirs, names[0]] : [theirs, mine, names[1]];
  if (high - low < 0.005 * Math.max(high, 1e-9)) return `The cheapest plans cost the same (${brief(mine)}).`;
  return `The cheapest plan of ${cheaper} costs ${brief(low)} instead of ${brief(high)}.`;
}

function columnsOf(p: Plan, q: Plan, names: [string, string]): string {
  const [mine, theirs] = [p, q].map((plan) => plan.changes.map((change) => change.column)) as [string[], string[]];
  const [only, other] = [mine.filter((name) => !theirs.includes(name)), theirs.filter((name) => !mine.includes(name))];
  if (!only.length && !other.length) return `Both change ${listed(mine, 4)}.`;
  const said = [
    only.length ? `only ${names[0]} changes ${listed(only, 4)}` : "",
    other.length ? `only ${names[1]} changes ${listed(other, 4)}` : "",
  ];
  const text = said.filter(Boolean).join("; ");
  return `${text[0]!.toUpperCase()}${text.slice(1)}.`;
}
