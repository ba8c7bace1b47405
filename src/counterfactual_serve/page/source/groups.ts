// Groups: choose columns, run the audit, read what differs between groups and models.

import { post, superseded } from "./api";
import type { Audit } from "./audit_document";
import { auditPage } from "./audit_view";
import type { Column } from "./contract";
import { announce, at, choice, field, fill, h } from "./dom";
import { busy, failed } from "./notices";
import { state } from "./state";
import { count } from "./words";

const MOST_GROUPS = 12;
const PEOPLE = [100, 300, 1000, 2000];
// Two crossed columns of a few groups each are readable, more are not.
const CROSSED = 2;

const chosen = new Set<string>();
let crossed = false;
let people = 300;
let request: AbortController | null = null;

export function buildGroups(): void {
  const given = candidates().filter((one) => one.mutability === "none" && one.categories);
  // Few groups first: with many, each holds few people, and the tables are long.
  given.sort((a, b) => a.categories!.length - b.categories!.length);
  for (const entry of given.slice(0, 2)) chosen.add(entry.name);
  fill(
    at("groups-content"),
    h(
      "p",
      {},
      "Is it equally hard for all groups to get the wanted decision? The audit asks for plans for many people and compares groups: how many are turned down, how far they have to go, and who has no way at all.",
    ),
    form(),
    h("div", { id: "audit" }),
  );
}

/** Columns that make groups one can read: categories that are few, and numbers, which are cut into bands. */
function candidates(): Column[] {
  const few = state.schema.columns.filter(
    (entry) => entry.kind !== "pixel" && (entry.categories?.length ?? 0) <= MOST_GROUPS,
  );
  const score = (entry: Column): number => (entry.mutability === "none" ? 0 : 2) + (entry.categories ? 0 : 1);
  return few
    .map((entry, i) => ({ entry, i }))
    .sort((a, b) => score(a.entry) - score(b.entry) || a.i - b.i)
    .map(({ entry }) => entry)
    .slice(0, 60);
}

/** All names to choose from: the model's columns, and those of the data that the model does not use. */
function names(): string[] {
  const known = new Set(state.schema.columns.map((entry) => entry.name));
  const others = (state.about.data?.columns ?? []).filter((name) => !known.has(name));
  return [...others, ...candidates().map((entry) => entry.name)];
}

function form(): HTMLElement {
  const box = (name: string): HTMLElement => {
    const flip = (event: Event): void => {
      if ((event.target as HTMLInputElement).checked) chosen.add(name);
      else chosen.delete(name);
      cross.disabled = chosen.size !== CROSSED;
    };
    return h(
      "label",
      { class: "check" },
      h("input", { type: "checkbox", checked: chosen.has(name), on: { change: flip } }),
      h("span", {}, name),
    );
  };
  const cross = h("input", {
    type: "checkbox",
    checked: crossed,
    disabled: chosen.size !== CROSSED,
    on: { change: () => (crossed = cross.checked) },
  });
  const sizes = PEOPLE.filter((many) => many <= (state.about.limits.audited ?? Infinity)).map(
    (many): [string, string] => [String(many), `up to ${count(many, "person", "people")}`],
  );
  const take = (event: Event): void => void (people = Number((event.target as HTMLSelectElement).value));
  return h(
    "form",
    {
      class: "audit-form",
      "data-live": true,
      on: {
        submit: (event) => {
          event.preventDefault();
          void run();
        },
      },
    },
    h("fieldset", {}, h("legend", {}, "Groups by"), h("div", { class: "checks" }, names().map(box))),
    h("label", { class: "check" }, cross, h("span", {}, "Also combine the two columns chosen")),
    h(
      "div",
      { class: "row-of-fields" },
      field("People to ask plans for", choice(sizes, String(people), { on: { change: take } })),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "submit", class: "primary", id: "run-audit" }, "Run the audit"),
      ),
    ),
  );
}

async function run(): Promise<void> {
  request?.abort();
  request = new AbortController();
  const list = [...chosen];
  if (!list.length)
    return fill(
      at("audit"),
      h("p", { class: "notice", role: "alert" }, "Choose at least one column to tell groups apart by."),
    );
  const groups = crossed && list.length === CROSSED ? [...list, list.join("*")] : list;
  fill(at("audit"), busy("Asking for plans for many people. This takes from ten seconds to a minute …"));
  announce("The audit is running.");
  try {
    const found = await post<Audit>("audit", { groups, people, target: state.target }, request.signal);
    fill(at("audit"), auditPage(found));
    announce(`The audit is done. ${count(found.clear_findings.length, "clear difference")}.`);
  } catch (error) {
    if (!superseded(error))
      fill(
        at("audit"),
        failed(error, () => void run()),
      );
  }
}
