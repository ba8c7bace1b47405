// The bar above plans, map and comparison: who it is about, what the model decides, and how that follows the sliders.

import { post } from "./api";
import { certainty, chip } from "./classes";
import type { Prediction, Row } from "./contract";
import { announce, at, button, fill, h } from "./dom";
import { newest, quiet } from "./live";
import { explain } from "./notices";
import { stale } from "./rules";
import { emit, moved, on, state } from "./state";
import { count, listed, named, quoted, sure } from "./words";

let real: Prediction | null = null;
let now: Prediction | null = null;
let problem: string | null = null;
let askAgain: () => void = () => {};
const pause = quiet(500);

interface Both {
  person: Row;
  real: Prediction;
  now: Prediction;
}

const ask = newest(
  async ([person, set]: [Row, Row]): Promise<Both> => {
    const { predictions } = await post<{ predictions: Prediction[] }>("predict", { rows: [person, set] });
    return { person, real: predictions[0]!, now: predictions[1]! };
  },
  (both) => {
    [real, now, problem] = [both.real, both.now, null];
    draw();
    pause(() => announce(spoken()));
  },
  (error) => {
    // A decision on other values than those on the cards must not stand beside the error.
    [real, now, problem] = [null, null, explain(error)];
    draw();
  },
);

/** Build the bar; `again` asks with the rules as they are. */
export function buildDecision(again: () => void): void {
  askAgain = again;
  const follow = (): void => ask([state.person.values, state.set]);
  on("person", () => {
    // The old person's decision must not stand beside the new person's name.
    [real, now, problem] = [null, null, null];
    draw();
    follow();
  });
  on("values", follow);
  for (const topic of ["rules", "asked", "values"] as const) on(topic, draw);
  draw();
  follow();
}

function spoken(): string {
  if (!real || !now) return "";
  const before = `${state.person.title}: decision ${named(real.decision)}, ${sure(real.confidence)}.`;
  return moved().length ? `With your values: ${named(now.decision)}, ${sure(now.confidence)}. ${before}` : before;
}

/** Everything keeps its place whatever it says, because whoever drags a slider below must not see it move. */
function draw(): void {
  const names = moved();
  const madeUp = state.person.row === null;
  fill(
    at("decision"),
    h(
      "div",
      { class: "who" },
      h("h2", { id: "decision-title" }, madeUp && names.length ? "Your values" : state.person.title),
      h("p", { class: "note", title: about(names) }, about(names)),
    ),
    h(
      "div",
      { class: "verdicts" },
      real && now ? verdicts(names, madeUp) : h("p", { class: "note" }, problem ? "No decision" : "Asking the model …"),
    ),
    h("div", { class: "buttons", "data-live": true }, reset(madeUp, names.length === 0), again()),
    problem ? h("p", { class: "notice bad", role: "alert" }, problem) : null,
  );
}

function about(names: string[]): string {
  const { row, label } = state.person;
  if (names.length) return `${count(names.length, "value")} moved: ${listed(names, 3)}`;
  if (row === null) return "Made of the most common values; describe somebody below";
  return label === null ? "Chosen from the data" : `In the data: ${quoted(label)}`;
}

function verdicts(names: string[], madeUp: boolean): Node[] {
  const both = names.length > 0 && !madeUp;
  const live = h(
    "div",
    { class: "verdict", id: "live-decision" },
    verdict(both ? "With your values" : "Decision", now!),
  );
  const before = both ? `Real values: ${named(real!.decision)}, ${sure(real!.confidence)}` : "";
  return [live, h("p", { class: "note" }, before)];
}

function verdict(title: string, found: Prediction): Node[] {
  const notes = found.notes.map((note) => h("p", { class: "note" }, note));
  return [
    h("span", { class: "title" }, title),
    chip(found.decision),
    certainty(found.decision, found.confidence),
    ...notes,
  ];
}

function reset(madeUp: boolean, idle: boolean): HTMLElement {
  const back = (): void => {
    state.set = { ...state.person.values };
    emit("values");
    emit("cards");
  };
  const words = madeUp ? "Back to the typical values" : "Back to the real values";
  return button(words, back, { class: "small", disabled: idle, "data-key": "reset" });
}

function again(): HTMLElement {
  return button("Ask again", askAgain, { class: stale() ? "small primary" : "small", "data-key": "ask-here" });
}
