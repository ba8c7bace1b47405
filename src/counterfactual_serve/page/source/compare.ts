// The same person and the same rules under both models, side by side, and what differs.

import { explainBody, post, superseded } from "./api";
import { progress } from "./asking";
import { certainty, chip } from "./classes";
import type { Answer, Explained, Model, Plan, Prediction, Question, Row, Which } from "./contract";
import { announce, at, breakable, type Child, fill, h, scroller } from "./dom";
import { already, best, difference, type Side } from "./compare_words";
import { busy, failed } from "./notices";
import { costNote, planCard, planTitle, usual } from "./plan_card";
import { inWords, question } from "./rules";
import { on, startRow, state } from "./state";
import { brief, count, listed, sure } from "./words";

const MOST_FACTS = 4;
let request: AbortController | null = null;
let visible = false;
let stale = true;

export function buildCompare(): void {
  for (const topic of ["person", "asked"] as const) on(topic, refresh);
}

/** Comparisons are asked for when they are looked at: they take another search. */
export function showCompare(now: boolean): void {
  visible = now;
  if (now && stale) update();
}

function refresh(): void {
  stale = true;
  if (visible) update();
}

function update(): void {
  // The main model's own search comes first: its answer is one of the two sides.
  if (progress.phase === "searching") {
    request?.abort();
    fill(at("compare-content"), busy("Asking both models …"));
  } else void load();
}

async function load(): Promise<void> {
  request?.abort();
  request = new AbortController();
  stale = false;
  const holder = at("compare-content");
  fill(holder, busy("Asking both models …"));
  const [row, wanted] = [state.asked?.row ?? startRow(), state.asked?.question ?? question()];
  try {
    const lasting = sharedShare();
    const sides = await both(row, wanted, lasting, request.signal);
    fill(holder, page(sides, wanted, lasting));
    announce(difference(sides));
  } catch (error) {
    if (!superseded(error))
      fill(
        holder,
        failed(error, () => void load()),
      );
  }
}

/** What both models can be asked: without witnesses of one, plans that are just enough. */
function sharedShare(): number | null {
  const { model, against } = state.about;
  if (!model.witnesses) return against!.witnesses ? 0 : null;
  return against!.witnesses ? (state.asked ?? state).lasting : 0;
}

async function both(
  row: Row,
  wanted: Question,
  lasting: number | null,
  signal: AbortSignal,
): Promise<[Side, Side]> {
  const known = (state.asked?.lasting ?? 0) === (lasting ?? 0) ? state.asked : null;
  const one = async (which: Which, model: Model): Promise<Side> => {
    const [told, found] = await Promise.all([
      post<{ predictions: Prediction[] }>("predict", { rows: [row], model: which }, signal),
      which === "main" && known ? known : explain(row, wanted, which, lasting, signal),
    ]);
    return { model, prediction: told.predictions[0]!, answer: found.answer, complete: found.complete };
  };
  return Promise.all([one("main", state.about.model), one("against", state.about.against!)]);
}

async function explain(
  row: Row,
  wanted: Question,
  which: Which,
  lasting: number | null,
  signal: AbortSignal,
): Promise<{ answer: Answer; complete: boolean }> {
  const { answers, complete } = await post<Explained>(
    "explain",
    explainBody(row, wanted, state.options, which, lasting),
    signal,
  );
  return { answer: answers[0]!, complete };
}

function page(sides: [Side, Side], wanted: Question, lasting: number | null): Child[] {
  return [
    h("p", { class: "asked" }, "Asked of both: ", inWords(wanted, lasting).join("; "), "."),
    h("p", { class: "difference" }, difference(sides)),
    table(sides),
    h("div", { class: "sides" }, sides.map(side)),
    costNote(),
  ];
}

function table(sides: [Side, Side]): HTMLElement {
  const line = (title: string, tell: (entry: Side) => Child): HTMLElement =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, title),
      sides.map((entry) => h("td", {}, tell(entry))),
    );
  const plan =
    (tell: (found: Plan, entry: Side) => Child) =>
    (entry: Side): Child => {
      const found = best(entry);
      return found ? tell(found, entry) : "–";
    };
  const fact = (model: Model, name: string): string | undefined => model.facts.find(([other]) => other === name)?.[1];
  // Only what tells the two apart.
  const facts = state.about.model.facts
    .map(([name]) => name)
    .filter((name) => fact(sides[0].model, name) !== fact(sides[1].model, name));
  return scroller(
    "Both models",
    {},
    h(
      "table",
      { class: "comparison" },
      h("caption", { class: "unseen" }, "Both models"),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("td"),
          sides.map(({ model }) => h("th", { scope: "col" }, breakable(model.name))),
        ),
      ),
      h(
        "tbody",
        {},
        facts.slice(0, MOST_FACTS).map((name) => line(name, ({ model }) => fact(model, name) ?? "–")),
        line("decision now", ({ prediction }) => chip(prediction.decision)),
        line("how sure", ({ prediction }) => certainty(prediction.decision, prediction.confidence)),
        line("plans", (entry) =>
          already(entry) ? "none needed" : count(entry.answer.plans.filter((one) => one.answered).length, "plan"),
        ),
        line(
          "cost of the cheapest",
          plan((found) => brief(found.cost)),
        ),
        line(
          "what it changes",
          plan((found) =>
            listed(
              found.changes.map((change) => change.column),
              5,
            ),
          ),
        ),
        line(
          "how sure then",
          plan((found) => sure(found.confidence)),
        ),
        line(
          "how usual",
          plan((found, entry) => usual(found, entry.answer.target)),
        ),
      ),
    ),
  );
}

function side({ model, answer, complete }: Side): HTMLElement {
  return h(
    "div",
    { class: "side" },
    h("h3", {}, breakable(model.name)),
    complete ? null : h("p", { class: "notice warn" }, "The time ran out; this is what was found."),
    answer.plans.map((plan) => planCard(plan, answer.target, planTitle(plan), null, "h4")),
    answer.notes.map((note) => h("p", { class: "note" }, note)),
  );
}
