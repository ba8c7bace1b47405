// The feature cards: what may change first, what plans never change after; a filter where there are many.

import type { Column } from "./contract";
import { at, button, fill, h } from "./dom";
import { featureCard } from "./feature_card";
import { heldBy } from "./rules";
import { on, state } from "./state";
import { count } from "./words";

// From here on a filter helps; more cards than MOST are slow to draw and nobody reads them.
const MANY = 16;
const MOST = 48;
let search = "";
let shown = MOST;

export function buildFeatures(): void {
  const { columns } = state.schema;
  const find = h("input", {
    type: "search",
    id: "find-feature",
    placeholder: "Name of a column",
    on: {
      input: (event) => {
        search = (event.target as HTMLInputElement).value;
        shown = MOST;
        draw();
      },
    },
  });
  fill(
    at("features"),
    h("h3", {}, "Try values, set rules"),
    h(
      "p",
      { class: "note" },
      "Move a value and the decision above follows. Lock a column, narrow its range or say how hard it is to change, then ask again.",
    ),
    state.schema.relations.length ? relations() : null,
    columns.length > MANY
      ? h("div", { class: "field find" }, h("label", { for: find.id }, `Find one of ${columns.length} columns`), find)
      : null,
    h("div", { id: "feature-cards" }),
  );
  on("person", draw);
  on("cards", draw);
  draw();
}

function relations(): HTMLElement {
  const texts = state.schema.relations.map((text) => h("li", {}, h("code", {}, text)));
  return h("div", { class: "relations" }, h("p", {}, "Plans also keep these relations:"), h("ul", {}, texts));
}

function draw(): void {
  const fits = state.schema.columns.filter((entry) => entry.name.toLowerCase().includes(search.trim().toLowerCase()));
  const open = fits.filter((entry) => heldBy(entry) === null);
  const held = fits.filter((entry) => heldBy(entry) !== null);
  const visible = open.slice(0, shown);
  fill(
    at("feature-cards"),
    fits.length ? null : h("p", { class: "notice" }, "No column has this name."),
    visible.length ? h("div", { class: "cards" }, visible.map(featureCard)) : null,
    open.length > shown ? more(open.length - shown) : null,
    held.length ? heldGroup(held) : null,
  );
}

function more(rest: number): HTMLElement {
  const grow = (): void => {
    shown += MOST;
    draw();
  };
  return button(`Show more (${count(rest, "column")} left)`, grow, { "data-key": "more-cards" });
}

/** Columns that plans never change: their values can be tried all the same, to see what the model makes of them. */
function heldGroup(held: Column[]): HTMLElement {
  return h(
    "details",
    { class: "held", open: held.length <= MANY || search !== "" },
    h("summary", {}, `${count(held.length, "column")} that plans never change`),
    h("div", { class: "cards" }, held.slice(0, MOST).map(featureCard)),
    held.length > MOST ? h("p", { class: "note" }, `The first ${MOST} are shown; find others by name.`) : null,
  );
}
