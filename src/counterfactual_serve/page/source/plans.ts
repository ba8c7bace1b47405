// The plans of the chosen person, and the plans that somebody keeps while asking again.

import { ask, outcome, progress } from "./asking";
import type { Plan } from "./contract";
import { announce, at, button, type Child, fill, h } from "./dom";
import { icon } from "./icons";
import { isKept, keep, kept, type Kept, unkeep } from "./kept";
import { busy, failed } from "./notices";
import { costNote, planCard, planTitle } from "./plan_card";
import { saveReceipt } from "./receipt";
import { inWords, stale } from "./rules";
import { type Asked, emit, on, state } from "./state";
import { count, number } from "./words";

export function buildPlans(): void {
  for (const topic of ["asked", "rules", "values", "kept"] as const) on(topic, draw);
  on("kept", drawKept);
  draw();
  drawKept();
}

function draw(): void {
  const holder = at("plans-content");
  // Nothing below may jump while a search runs: somebody may be about to press it.
  holder.style.minHeight = progress.phase === "searching" && !state.asked ? `${holder.offsetHeight}px` : "";
  fill(holder, problem(), state.asked ? found(state.asked) : null);
}

function problem(): Child {
  if (progress.phase === "failed") return failed(progress.error, () => void ask());
  return progress.phase === "searching" && !state.asked ? busy("Searching for plans …") : null;
}

/** Where things stand, always in the same line. */
function standing(asked: Asked): Child {
  if (progress.phase === "searching") return busy("Searching for plans …");
  if (stale())
    return h("strong", { class: "stale" }, "The rules have changed since these plans were found: ask again.");
  return h("strong", {}, `${outcome(asked)} ${number(asked.seconds, 1)} s.`);
}

function found(asked: Asked): HTMLElement {
  const { answer, complete } = asked;
  const old = progress.phase === "searching" || stale();
  return h(
    "div",
    {},
    h("div", { class: "asked" }, standing(asked), h("p", {}, "Asked for: ", inWords(asked.question, asked.lasting).join("; "), ".")),
    complete
      ? null
      : h(
          "p",
          { class: "notice warn" },
          icon("alert"),
          "The time ran out before the search was done. Ask for fewer plans, or ask again.",
        ),
    h(
      "div",
      { class: old ? "plans old" : "plans" },
      answer.plans.map((plan) => card(plan, asked)),
    ),
    answer.plans.some((plan) => plan.status !== "already_there") ? costNote() : null,
    answer.notes.map((note) => h("p", { class: "note" }, note)),
  );
}

function card(plan: Plan, asked: Asked): HTMLElement {
  const title = planTitle(plan);
  const held = isKept(asked, plan);
  const flip = (): void => {
    if (held) unkeep(held);
    else keep(asked, plan);
    announce(held ? "No longer kept." : "Kept.");
  };
  const key = `${plan.option}`;
  const actions =
    plan.status === "already_there"
      ? null
      : [
          button([icon("keep"), held ? "Kept" : "Keep"], flip, {
            "aria-pressed": held ? "true" : "false",
            "aria-label": `Keep plan ${key}`,
            "data-key": `keep-${key}`,
          }),
          button([icon("try"), "Try values"], () => tryValues(plan), {
            "aria-label": `Try the values of plan ${key} on the cards`,
            "data-key": `try-${key}`,
          }),
          state.about.receipts
            ? button([icon("receipt"), "Receipt"], () => void saveReceipt(asked, plan), {
                "aria-label": `Save a receipt of plan ${key}`,
                "data-key": `receipt-${key}`,
              })
            : null,
        ];
  return planCard(plan, asked.answer.target, title, actions);
}

/** Put a plan's values on the feature cards, where the decision follows. */
function tryValues(plan: Plan): void {
  state.set = { ...plan.values };
  emit("values");
  emit("cards");
  announce("The values of this plan are on the cards.");
}

function drawKept(): void {
  const all = kept();
  if (!all.length) return fill(at("kept"));
  fill(
    at("kept"),
    h("h3", {}, "Kept plans"),
    h("p", { class: "note", "data-live": true }, `${count(all.length, "plan")}, until you close this tab.`),
    h("div", { class: "plans" }, all.map(keptCard)),
  );
}

function keptCard(entry: Kept): HTMLElement {
  const { asked, plan } = entry;
  const remove = (): void => {
    unkeep(entry);
    announce("No longer kept.");
  };
  const actions = [
    button("Remove", remove, {
      "aria-label": `Remove kept plan ${plan.option} of ${asked.title}`,
      "data-key": `unkeep-${entry.id}`,
    }),
    state.about.receipts
      ? button([icon("receipt"), "Receipt"], () => void saveReceipt(asked, plan), {
          "data-key": `kept-receipt-${entry.id}`,
        })
      : null,
  ];
  const card = planCard(plan, asked.answer.target, `${asked.title}: ${planTitle(plan)}`, actions, "h4");
  card.querySelector("header")?.after(h("p", { class: "note" }, inWords(asked.question).join("; ")));
  return card;
}
