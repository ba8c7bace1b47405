// The question: which decision, how sure, how many plans, how many changes, from which values.

import { at, button, choice, field, fill, h } from "./dom";
import { meaning } from "./rules";
import { classes, emit, moved, on, state, type Start } from "./state";
import { count, named, percent } from "./words";

const CONFIDENCES = [0.6, 0.7, 0.8, 0.9, 0.95, 0.99];
const SHARES = [0.7, 0.8, 0.9, 0.95];
const MOST_CHANGES = 6;

export function buildQuestion(ask: () => void): void {
  const draw = (): void => fill(at("question"), form(ask));
  on("person", draw);
  on("rules", draw);
  on("values", () => drawStart());
  draw();
}

function form(ask: () => void): HTMLElement {
  return h(
    "form",
    {
      class: "question",
      "aria-label": "Question",
      on: {
        submit: (event) => {
          event.preventDefault();
          ask();
        },
      },
    },
    h("div", { class: "row-of-fields" }, wanted(), certain(), lasting(), changes(), plans()),
    h("div", { id: "question-start" }, start()),
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "submit", class: "primary", id: "ask", "data-key": "ask" }, "Ask again"),
      state.rules.size
        ? button(`Clear rules of ${count(state.rules.size, "column")}`, clear, { "data-key": "clear" })
        : null,
    ),
  );
}

function pick(
  key: string,
  options: [string, string][],
  chosen: string,
  take: (value: string) => void,
  title: string | null = null,
): HTMLSelectElement {
  const change = (event: Event): void => {
    take((event.target as HTMLSelectElement).value);
    emit("rules");
  };
  return choice(options, chosen, { "data-key": key, title, on: { change } });
}

function wanted(): HTMLElement {
  // Values are positions, because classes may be numbers. Without a wanted class, the server picks the next most likely.
  const names = classes().map((of, i): [string, string] => [String(i), named(of)]);
  const none: [string, string][] = state.about.model.wanted === null ? [["", "another one"]] : [];
  const here = classes().findIndex((of) => of === state.target);
  const take = (value: string): void => void (state.target = value === "" ? null : classes()[Number(value)]!);
  const select = pick("target", [...names, ...none], here < 0 ? "" : String(here), take);
  return field("Wanted decision", select);
}

function certain(): HTMLElement {
  const own = state.about.model.confidence;
  const options: [string, string][] = [
    ["", typeof own === "number" ? `the model's own: ${percent(own)}` : "just enough"],
    ...CONFIDENCES.map((p): [string, string] => [String(p), `at least ${percent(p)}`]),
  ];
  const take = (value: string): void => void (state.confidence = value ? Number(value) : null);
  return field("How sure", pick("confidence", options, String(state.confidence ?? ""), take));
}

/** Only of a model with witnesses, who can say whether plans last. */
function lasting(): HTMLElement | null {
  if (!state.about.model.witnesses) return null;
  const options: [string, string][] = [
    ["0", "just enough today"],
    ...SHARES.map((p): [string, string] => [String(p), `in ${percent(p)} of refits`]),
  ];
  const take = (value: string): void => void (state.lasting = Number(value));
  return field("How lasting", pick("lasting", options, String(state.lasting), take));
}

function changes(): HTMLElement {
  const most = Math.min(MOST_CHANGES, state.schema.columns.length);
  const numbers = Array.from({ length: most }, (_, i): [string, string] => [String(i + 1), `at most ${i + 1}`]);
  const take = (value: string): void => void (state.maxChanges = value ? Number(value) : null);
  const options: [string, string][] = [["", "no limit"], ...numbers];
  const chosen = String(state.maxChanges ?? "");
  return field("Changes", pick("changes", options, chosen, take, meaning("max_changes")));
}

function plans(): HTMLElement {
  const numbers = Array.from({ length: state.about.limits.options }, (_, i): [string, string] => [
    String(i + 1),
    `up to ${i + 1}`,
  ]);
  return field(
    "Plans",
    pick("options", numbers, String(state.options), (value) => (state.options = Number(value))),
  );
}

/** Moved values are a try; whether plans begin there is for the user to say. A made-up person is what the cards say. */
function start(): HTMLElement | null {
  if (state.person.row === null || !moved().length) return null;
  const option = (value: Start, words: string): HTMLElement => {
    const take = (): void => {
      state.start = value;
      emit("rules");
    };
    const props = { type: "radio", name: "start", value, checked: state.start === value, "data-key": `start-${value}` };
    return h("label", { class: "check" }, h("input", { ...props, on: { change: take } }), h("span", {}, words));
  };
  return h(
    "fieldset",
    { class: "start" },
    h("legend", {}, "Plans start from"),
    option("real", "the real values"),
    option("set", "the values set below"),
  );
}

function drawStart(): void {
  fill(at("question-start"), start());
}

function clear(): void {
  state.rules.clear();
  emit("rules");
  emit("cards");
}
