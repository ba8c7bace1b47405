// The page of `ct serve`: load what the server knows, build the panels, and go where the address points.

import { get } from "./api";
import { ask } from "./asking";
import { buildCompare } from "./compare";
import { watch } from "./connection";
import type { About, Schema } from "./contract";
import { buildDecision } from "./decision";
import { at, breakable, fill } from "./dom";
import { buildExport, footing } from "./export";
import { buildFeatures } from "./features";
import { buildGroups } from "./groups";
import { buildMap } from "./map";
import { failed } from "./notices";
import { buildPaper } from "./paper";
import { buildPeople } from "./people";
import { buildPlans } from "./plans";
import { buildQuestion } from "./question";
import { buildReceipt } from "./receipt";
import { buildRoutes, toPerson } from "./routes";
import { begin, on, state } from "./state";
import { takeTokenFromAddress } from "./token";
import { number } from "./words";

async function start(): Promise<void> {
  try {
    const [about, schema] = await Promise.all([get<About>("model"), get<Schema>("schema")]);
    begin(about, schema);
  } catch (error) {
    return fill(
      at("loading"),
      failed(error, () => void start()),
    );
  }
  headline();
  build();
  watch(state.about.model.sha256);
}

function headline(): void {
  const { model, data, against } = state.about;
  fill(at("model-name"), breakable(model.name));
  const rows = data ? `${number(data.rows, 0)} rows of ${data.name}` : "no data given: describe a person";
  const beside = against ? ` · beside ${against.name}` : "";
  at("model-facts").textContent = `${rows}${beside}`;
  at("foot").textContent = `${footing()} · Everything stays on this machine.`;
}

function build(): void {
  at("loading").remove();
  for (const id of ["tools", "nav"]) at(id).hidden = false;
  buildDecision(() => void ask());
  buildQuestion(() => void ask());
  buildPlans();
  buildFeatures();
  buildPaper();
  buildMap();
  buildCompare();
  buildPeople(toPerson);
  if (state.about.audit) buildGroups();
  buildReceipt();
  buildExport();
  buildPrint();
  // Whoever is chosen, the first question is asked at once.
  on("person", () => void ask());
  buildRoutes();
  // With data, the table chooses its first row and so asks; without, or after a reload, the person is there already.
  if (!state.about.data || state.person.row !== null) void ask();
}

/** Paper cannot be unfolded: everything is, while printing. */
function buildPrint(): void {
  let folded: HTMLDetailsElement[] = [];
  at("print").addEventListener("click", () => window.print());
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll<HTMLDetailsElement>("main details:not([open])")];
    folded.forEach((details) => (details.open = true));
  });
  window.addEventListener("afterprint", () => folded.forEach((details) => (details.open = false)));
}

takeTokenFromAddress();
void start();
