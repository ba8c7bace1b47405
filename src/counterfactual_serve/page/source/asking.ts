// Asking for plans.

import { explainBody, post, superseded } from "./api";
import type { Explained, Question, Row } from "./contract";
import { announce } from "./dom";
import { question } from "./rules";
import { type Asked, emit, startRow, state } from "./state";
import { count, quoted } from "./words";

export type Progress = { phase: "idle" } | { phase: "searching" } | { phase: "failed"; error: unknown };

export let progress: Progress = { phase: "idle" };
let request: AbortController | null = null;

function go(next: Progress): void {
  progress = next;
  emit("asked");
}

/** Ask with the rules as they are now; an older question that is still on its way is given up. */
export async function ask(): Promise<void> {
  request?.abort();
  const mine = (request = new AbortController());
  go({ phase: "searching" });
  announce("Searching for plans.");
  try {
    state.asked = await explain(startRow(), question(), mine.signal);
    go({ phase: "idle" });
    announce(outcome(state.asked));
  } catch (error) {
    if (superseded(error)) return;
    state.asked = null;
    go({ phase: "failed", error });
  }
}

async function explain(row: Row, wanted: Question, signal: AbortSignal): Promise<Asked> {
  const { lasting } = state;
  const found = await post<Explained>("explain", explainBody(row, wanted, state.options, "main", lasting), signal);
  const title =
    state.start === "set" && state.person.row !== null
      ? `${state.person.title}, with moved values`
      : state.person.title;
  return { row, title, question: wanted, lasting, answer: found.answers[0]!, complete: found.complete, seconds: found.seconds };
}

/** What came of it, in one sentence. */
export function outcome({ answer, complete }: Asked): string {
  const reached = answer.plans.filter((plan) => plan.answered && plan.status !== "implausible").length;
  const odd = answer.plans.filter((plan) => plan.status === "implausible").length;
  const unusual = odd ? `, and ${odd} that few real cases look like` : "";
  const late = complete ? "" : " The time ran out; this is what was found.";
  if (answer.plans.some((plan) => plan.status === "already_there"))
    return `The decision already is ${quoted(answer.target)}.`;
  if (reached) return `${count(reached, "plan")} found${unusual}.${late}`;
  if (odd) return `${count(odd, "plan")} found, but few real cases look like ${odd === 1 ? "it" : "them"}.${late}`;
  return `No plan was found that reaches ${quoted(answer.target)} within these rules.${late}`;
}
