// The map panel: which two columns, which model, and what the picture says, in words and as a table.

import { post, superseded } from "./api";
import type { Column, MapAnswer, Plan, Which } from "./contract";
import { announce, at, choice, field, fill, h } from "./dom";
import { drawMap, legend } from "./map_draw";
import { asTable, summary } from "./map_words";
import { busy, failed } from "./notices";
import { chooseRow } from "./people";
import { type Asked, on, startRow, state } from "./state";

const COMPONENTS = "";
const SIZE = 48;

let columns: [string, string] | null = null;
// Until somebody chooses axes, they follow the plans.
let picked = false;
let model: Which = "main";
let shown: MapAnswer | null = null;
let drawnPlans: Plan[] = [];
let drawnAsked: Asked | null = null;
let request: AbortController | null = null;
let visible = false;
let stale = true;
let paintedWidth = 0;

export function buildMap(): void {
  fill(at("map-content"), h("div", { id: "map-form", "data-live": true }), h("div", { id: "map-picture" }));
  drawForm();
  on("person", refresh);
  // Questions announce themselves several times; only new plans need a new map.
  on("asked", () => state.asked !== drawnAsked && refresh());
  new ResizeObserver(() => {
    const width = at("map-picture").clientWidth;
    // Only a new width needs a new picture; the table below changes the height.
    if (visible && shown && width !== paintedWidth) paint();
  }).observe(at("map-picture"));
}

/** The two columns that a map starts with: what the plans change most, then numbers that may change, then others. */
function firstPair(): [string, string] | null {
  const changed = (state.asked?.answer.plans ?? []).flatMap((plan) => plan.changes).map((change) => change.column);
  // A number whose usual value is the end of its range, such as a capital gain of 0, has everybody at one edge.
  const lopsided = (entry: Column): boolean =>
    entry.range !== null && (entry.typical === entry.range[0] || entry.typical === entry.range[1]);
  const score = (entry: Column): number =>
    changed.includes(entry.name)
      ? changed.indexOf(entry.name) - 1000
      : (entry.mutability === "none" ? 4 : 0) + (entry.categories ? 2 : 0) + (lopsided(entry) ? 3 : 0);
  const ranked = state.schema.columns
    .map((entry) => ({ name: entry.name, score: score(entry) }))
    .sort((a, b) => a.score - b.score);
  return ranked.length < 2 ? null : [ranked[0]!.name, ranked[1]!.name];
}

/** Maps are worked out when they are looked at. */
export function showMap(now: boolean): void {
  visible = now;
  if (now && stale) void load();
}

function refresh(): void {
  stale = true;
  if (visible) void load();
}

function drawForm(): void {
  const names = state.schema.columns.map((entry): [string, string] => [entry.name, entry.name]);
  const axis = (which: 0 | 1): HTMLSelectElement =>
    choice([[COMPONENTS, "main directions of the data"], ...names], columns?.[which] ?? COMPONENTS, {
      "data-key": `axis-${which}`,
      on: { change: (event) => setAxis(which, (event.target as HTMLSelectElement).value) },
    });
  const { against } = state.about;
  const take = (event: Event): void => {
    model = (event.target as HTMLSelectElement).value as Which;
    void load();
  };
  const models: [string, string][] = [
    ["main", state.about.model.name],
    ["against", against?.name ?? ""],
  ];
  fill(
    at("map-form"),
    h(
      "div",
      { class: "row-of-fields" },
      field("Across", axis(0)),
      field("Up", axis(1)),
      against ? field("Decisions of", choice(models, model, { "data-key": "map-model", on: { change: take } })) : null,
    ),
  );
}

/** Directions come as a pair: choosing them for one axis chooses them for both, and a column brings another one along. */
function setAxis(which: 0 | 1, name: string): void {
  picked = true;
  if (name === COMPONENTS) columns = null;
  else {
    const spare = firstPair()?.find((other) => other !== name) ?? name;
    const other = columns?.[1 - which] ?? spare;
    const second = other === name ? spare : other;
    columns = which === 0 ? [name, second] : [second, name];
  }
  drawForm();
  void load();
}

async function load(): Promise<void> {
  request?.abort();
  request = new AbortController();
  stale = false;
  drawnAsked = state.asked;
  if (!picked) {
    columns = firstPair();
    drawForm();
  }
  const holder = at("map-picture");
  holder.setAttribute("aria-busy", "true");
  if (!shown) fill(holder, busy("Drawing the map …"));
  const plans = (state.asked?.answer.plans ?? []).filter((plan) => plan.changes.length);
  const body = {
    row: state.asked?.row ?? startRow(),
    columns,
    plans: plans.map((plan) => plan.values),
    model,
    size: SIZE,
  };
  try {
    shown = await post<MapAnswer>("map", body, request.signal);
    drawnPlans = plans;
    paint();
    announce(summary(shown));
  } catch (error) {
    if (superseded(error)) return;
    shown = null;
    fill(
      holder,
      failed(error, () => void load()),
    );
  }
  holder.removeAttribute("aria-busy");
}

function paint(): void {
  if (!shown) return;
  const found = shown;
  paintedWidth = at("map-picture").clientWidth;
  const labels = drawnPlans.map((plan) => String(plan.option));
  fill(
    at("map-picture"),
    drawMap(found, paintedWidth, labels, state.person.title, summary(found), (row) => void chooseRow(row)),
    legend(found, drawnPlans.length > 0),
    h(
      "p",
      { class: "map-words" },
      summary(found),
      drawnPlans.length ? " A plan that also changes other columns may end in the other colour." : null,
    ),
    asTable(found, drawnPlans),
  );
}
