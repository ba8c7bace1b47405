// What differs between two models, in words.

import type { Answer, Model, Plan, Prediction } from "./contract";
import { brief, listed, quoted } from "./words";

export interface Side {
  model: Model;
  prediction: Prediction;
  answer: Answer;
  complete: boolean;
}

/** The best plan of a side: the first that reaches the target, for plans come by cost. */
export function best({ answer }: Side): Plan | undefined {
  return answer.plans.find((plan) => plan.answered && plan.status !== "already_there");
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
  if (p && q)
    return [decided, comparable(p, q) ? costs(p, q, names) : "", columnsOf(p, q, names)].filter(Boolean).join(" ");
  const lacking = sides.filter((entry, i) => !(i ? q : p) && !already(entry)).map(({ model }) => model.name);
  if (!lacking.length) return decided;
  return `${decided} ${lacking.length === 2 ? "Neither has a plan within these rules." : `${lacking[0]} has no plan within these rules.`}`;
}

export function already({ answer }: Side): boolean {
  return answer.plans.some((plan) => plan.status === "already_there");
}

/** What a plan costs on the ruler that both models share, if the server tells. */
export function cost(plan: Plan): number {
  return plan.cost_main ?? plan.cost;
}

function costs(p: Plan, q: Plan, names: [string, string]): string {
  const [mine, theirs] = [cost(p), cost(q)];
  const [low, high, cheaper] = mine <= theirs ? [mine, theirs, names[0]] : [theirs, mine, names[1]];
  if (high - low < 0.005 * Math.max(high, 1e-9)) return `The cheapest plans cost the same (${brief(mine)}).`;
  return `The cheapest plan of ${cheaper} costs ${brief(low)} instead of ${brief(high)}.`;
}

/** Whether a step of a number costs the same under both models, as far as their plans show it. */
export function comparable(p: Plan, q: Plan): boolean {
  if (q.cost_main !== undefined && q.cost_main !== null) return true;
  const price = (plan: Plan, name: string): number | null => {
    const found = plan.changes.find((change) => change.column === name);
    return found?.change ? found.cost / Math.abs(found.change) : null;
  };
  return p.changes.every(({ column: name }) => {
    const [mine, theirs] = [price(p, name), price(q, name)];
    return mine === null || theirs === null || Math.abs(mine - theirs) <= 0.01 * Math.max(mine, theirs);
  });
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
