// One plan as a card: the sentence, every change from → to, what it costs, how sure, how usual, what binds.

import { certainty, chip } from "./classes";
import type { Class, Plan } from "./contract";
import { breakable, type Child, h } from "./dom";
import { icon } from "./icons";
import { column } from "./state";
import { brief, cell, count, percent, quoted, withUnit } from "./words";

const MOST = 12;

/** The unit of costs; it stands wherever plans do, on paper too. */
export function costNote(): HTMLElement {
  return h(
    "p",
    { class: "note cost-note" },
    "Cost counts standard deviations of each column; a new category counts 2. What is harder to change counts more.",
  );
}

/** What a plan is called: who has no plan is not to take the best effort for one. */
export function planTitle(plan: Plan): string {
  return plan.status === "exhausted" || plan.status === "infeasible" ? "The closest found" : `Plan ${plan.option}`;
}

/** How it ended, in words and a tone; colour is never alone. */
function verdict(plan: Plan, target: Class): [string, string] {
  switch (plan.status) {
    case "converged":
      return ["good", `Reaches ${quoted(target)}`];
    case "already_there":
      return ["good", `Already ${quoted(target)}`];
    case "implausible":
      return ["warn", `Reaches ${quoted(target)}, but few real cases look like it`];
    default:
      return ["bad", `Does not reach ${quoted(target)}`];
  }
}

export function planCard(
  plan: Plan,
  target: Class,
  title: string,
  actions: Child,
  level: "h3" | "h4" = "h3",
): HTMLElement {
  const [tone, words] = verdict(plan, target);
  return h(
    "article",
    { class: `plan ${tone}`, "aria-label": title },
    h(
      "header",
      {},
      h(level, {}, title),
      h("span", { class: `badge ${tone}` }, icon(tone === "good" ? "yes" : tone === "warn" ? "alert" : "no"), words),
    ),
    h("p", { class: "sentence" }, plan.sentence),
    plan.changes.length ? changes(plan) : null,
    plan.status === "already_there" ? null : facts(plan, target),
    plan.binding.length ? binding(plan) : null,
    actions ? h("div", { class: "buttons", "data-live": true }, actions) : null,
  );
}

function changes(plan: Plan): HTMLElement {
  const rest = plan.changes.length - MOST;
  const lines = plan.changes.slice(0, MOST).map(({ column: name, from, to, unit, follows }) => {
    const entry = column(name);
    return h(
      "li",
      {},
      h("span", { class: "name" }, breakable(name), follows ? h("small", {}, " follows") : null),
      h(
        "span",
        { class: "move" },
        h("span", { class: "unseen" }, "from "),
        h("span", { class: "from" }, cell(entry, from)),
        h("span", { class: "unseen" }, " to "),
        icon("arrow"),
        h("strong", {}, withUnit(entry, to, unit)),
      ),
    );
  });
  return h(
    "ul",
    { class: "changes", "aria-label": "Changes" },
    lines,
    rest > 0 ? h("li", {}, `and ${count(rest, "more change")}`) : null,
  );
}

/** "more usual than 34% of real ‘>50K’ rows": among rows that have the class, how many look less like it. */
export function usual(plan: Plan, target: Class): string {
  if (plan.plausibility === null) return "not judged: this model has no gate";
  if (plan.percentile === null) return `plausibility ${percent(plan.plausibility)}; no rows to compare with`;
  const share = Math.floor(plan.percentile + 1e-6);
  if (share < 1) return `less usual than almost all real ${quoted(target)} rows`;
  return `more usual than ${share}% of real ${quoted(target)} rows`;
}

function facts(plan: Plan, target: Class): HTMLElement {
  // The confidence is that of the target, which a best effort does not reach.
  const reached = plan.prediction === target;
  return h(
    "dl",
    { class: "facts" },
    fact("Cost", brief(plan.cost)),
    fact("Decision then", [
      chip(plan.prediction),
      " ",
      reached ? certainty(plan.prediction, plan.confidence) : `${quoted(target)}: ${percent(plan.confidence)}`,
    ]),
    fact("How usual", usual(plan, target)),
  );
}

function fact(title: string, value: Child): HTMLElement {
  return h("div", {}, h("dt", {}, title), h("dd", {}, value));
}

function binding(plan: Plan): HTMLElement {
  const lines = plan.binding
    .slice(0, MOST)
    .map(({ column: name, reason }) => h("li", {}, h("strong", {}, name), ` ${reason}`));
  const title = plan.answered ? "What would help, but is not allowed" : "What stands in the way";
  return h("div", { class: "binding" }, h("p", {}, title), h("ul", {}, lines));
}
