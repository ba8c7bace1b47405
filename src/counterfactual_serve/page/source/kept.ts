// Plans to keep while asking again: with the question they answer, for this tab only.

import type { Plan } from "./contract";
import { type Asked, emit, state } from "./state";

export interface Kept {
  id: number;
  asked: Asked;
  plan: Plan;
}

let list: Kept[] | null = null;

function storageKey(): string {
  return `ct.kept.${state.about.model.sha256}`;
}

export function kept(): Kept[] {
  if (!list) {
    try {
      list = JSON.parse(sessionStorage.getItem(storageKey()) ?? "[]") as Kept[];
    } catch {
      list = [];
    }
  }
  return list;
}

function store(next: Kept[]): void {
  list = next;
  try {
    sessionStorage.setItem(storageKey(), JSON.stringify(next));
  } catch {
    // Without storage, kept plans last until the page is loaded again.
  }
  emit("kept");
}

export function isKept(asked: Asked, plan: Plan): Kept | undefined {
  const values = JSON.stringify([asked.row, plan.values]);
  return kept().find((entry) => JSON.stringify([entry.asked.row, entry.plan.values]) === values);
}

export function keep(asked: Asked, plan: Plan): void {
  // The other plans of the answer are not kept, or ten bookmarks would hold a hundred plans.
  const alone = { ...asked, answer: { ...asked.answer, plans: [plan] } };
  const id = 1 + Math.max(0, ...kept().map((entry) => entry.id));
  store([...kept(), { id, asked: alone, plan }]);
}

export function unkeep(entry: Kept): void {
  store(kept().filter((other) => other.id !== entry.id));
}
