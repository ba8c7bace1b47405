// The table of people: filter, sort, turn pages, choose a row.

import { post, superseded } from "./api";
import { chip, certainty } from "./classes";
import { columnPicker, shownColumns } from "./columns";
import type { Individual, RowsPage, RowsQuery } from "./contract";
import { announce, at, button, fill, h, scroller } from "./dom";
import { type Filters, filterForm } from "./filters";
import { busy, failed } from "./notices";
import { choose, on, state } from "./state";
import { cell, named, number, sure } from "./words";

const PAGE = 25;

const query: Required<Pick<RowsQuery, "offset" | "sort" | "descending">> = {
  offset: 0,
  sort: "row",
  descending: false,
};
let filters: Filters = { decision: null, search: null, filters: [] };
let page: RowsPage | null = null;
let request: AbortController | null = null;
let opened: () => void = () => {};

/** Build the panel; `open` is called when somebody chooses a row. */
export function buildPeople(open: () => void): void {
  opened = open;
  const { data } = state.about;
  if (!data) return;
  fill(
    at("people-content"),
    h("p", { class: "note", id: "people-count" }, counted(data.rows)),
    filterForm((next) => {
      filters = next;
      query.offset = 0;
      void load();
    }),
    h("div", { id: "people-rows" }),
  );
  on("person", markChosen);
  void load(false);
}

/** How many of the rows are listed below: all of them, or those that fit the filters. */
function counted(fit: number): string {
  const { rows, total, truncated, name } = state.about.data!;
  const all = truncated ? `first ${number(rows, 0)} of ${number(total, 0)} rows` : `${number(rows, 0)} rows`;
  if (fit < rows) return `${number(fit, 0)} of ${truncated ? "the " : ""}${all} of ${name}.`;
  return `${truncated ? "The" : "All"} ${all} of ${name}.`;
}

async function load(speak = true): Promise<void> {
  request?.abort();
  request = new AbortController();
  const holder = at("people-rows");
  holder.setAttribute("aria-busy", "true");
  if (!page) fill(holder, busy("Reading the rows …"));
  try {
    page = await post<RowsPage>("rows", { ...query, ...filters, limit: PAGE }, request.signal);
    at("people-count").textContent = counted(page.total);
    fill(holder, page.total ? [table(page), pager(page)] : nobody());
    if (speak) announce(`${number(page.total, 0)} people.`);
    else first(page);
  } catch (error) {
    if (superseded(error)) return;
    fill(
      holder,
      failed(error, () => void load()),
    );
  }
  holder.removeAttribute("aria-busy");
}

/** Whom the page starts with: the first person who does not have the wanted decision, for there is something to ask. */
function first({ rows }: RowsPage): void {
  if (state.person.row !== null) return;
  const found = rows.find((person) => person.decision !== state.about.model.wanted) ?? rows[0];
  if (found) choose(found);
}

function nobody(): HTMLElement {
  return h("p", { class: "notice" }, "Nobody fits these filters. Take one away to see more people.");
}

function table(found: RowsPage): HTMLElement {
  const columns = shownColumns();
  const labelled = state.about.data?.labelled ?? false;
  const head = h(
    "tr",
    {},
    sortable("row", "Row"),
    sortable("decision", "Decision"),
    sortable("confidence", "How sure"),
    labelled ? h("th", { scope: "col" }, h("span", {}, "In the data")) : null,
    columns.map((entry) => sortable(entry.name, entry.name, entry.unit, !entry.categories)),
  );
  const body = found.rows.map((person) => row(person, columns, labelled));
  const focusable = body.find((entry) => entry.classList.contains("chosen")) ?? body[0];
  focusable?.querySelector("button")?.setAttribute("tabindex", "0");
  return h(
    "div",
    {},
    columnPicker(() => page && fill(at("people-rows"), table(page), pager(page))),
    scroller(
      "Table of people",
      { class: "people-scroll" },
      h(
        "table",
        { class: "people", "aria-describedby": "people-hint" },
        h("caption", { class: "unseen" }, "People, with the model's decision and how sure it is"),
        h("thead", {}, head),
        h("tbody", { on: { keydown: walk } }, body),
      ),
    ),
    h(
      "p",
      { class: "hint", id: "people-hint", "data-live": true },
      "Choose a row to see its plans. With the keyboard: arrow keys move between rows, Enter chooses.",
    ),
  );
}

function sortable(key: string, title: string, unit: string | null = null, right = false): HTMLElement {
  const current = query.sort === key;
  const order = current ? (query.descending ? "descending" : "ascending") : null;
  const turn = (): void => {
    Object.assign(query, { sort: key, descending: current && !query.descending, offset: 0 });
    void load();
  };
  return h(
    "th",
    { scope: "col", "aria-sort": order, class: right ? "right" : null },
    button([h("span", { class: "name" }, title), unit ? h("small", {}, unit) : null], turn, {
      class: "sort",
      "data-key": `sort-${key}`,
      title: `Sort by ${title}`,
    }),
  );
}

function row(person: Individual, columns: ReturnType<typeof shownColumns>, labelled: boolean): HTMLTableRowElement {
  const chosen = state.person.row === person.row;
  const take = (): void => {
    choose(person);
    opened();
  };
  const open = h(
    "button",
    {
      type: "button",
      class: "row-number",
      tabindex: "-1",
      "data-key": `row-${person.row}`,
      "aria-current": chosen ? "true" : null,
    },
    person.row,
    h("span", { class: "unseen" }, `: ${named(person.decision)}, ${sure(person.confidence)}`),
  );
  return h(
    "tr",
    { class: chosen ? "chosen" : null, "data-row": person.row, on: { click: take } },
    h("th", { scope: "row" }, open),
    h("td", {}, chip(person.decision)),
    h("td", {}, certainty(person.decision, person.confidence)),
    labelled ? h("td", {}, person.label === null ? "–" : named(person.label)) : null,
    columns.map((entry) => {
      const text = cell(entry, person.values[entry.name]);
      return h("td", { class: entry.categories ? null : "right", title: text.length > 22 ? text : null }, text);
    }),
  );
}

/** Arrow keys move between rows; only one row is a stop of the tab key, or 25 of them would be in the way. */
function walk(event: KeyboardEvent): void {
  const step = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
  if (step === undefined) return;
  const buttons = [...at("people-rows").querySelectorAll<HTMLElement>("tbody .row-number")];
  const here = buttons.indexOf(event.target as HTMLElement);
  const next = buttons[Math.min(Math.max(here + step, 0), buttons.length - 1)];
  if (here < 0 || !next) return;
  event.preventDefault();
  buttons.forEach((entry) => entry.setAttribute("tabindex", entry === next ? "0" : "-1"));
  next.focus();
}

function markChosen(): void {
  at("people-rows")
    .querySelectorAll<HTMLElement>("tbody tr")
    .forEach((line) => {
      const chosen = line.dataset["row"] === String(state.person.row);
      line.classList.toggle("chosen", chosen);
      const open = line.querySelector("button");
      if (chosen) open?.setAttribute("aria-current", "true");
      else open?.removeAttribute("aria-current");
    });
}

function pager(found: RowsPage): HTMLElement {
  const turn = (by: number) => (): void => {
    query.offset = Math.max(0, query.offset + by);
    void load();
  };
  const last = found.offset + found.rows.length;
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages of people" },
    button("Previous", turn(-PAGE), { disabled: found.offset === 0, "data-key": "previous" }),
    h("span", {}, `${number(found.offset + 1, 0)}–${number(last, 0)} of ${number(found.total, 0)}`),
    button("Next", turn(PAGE), { disabled: last >= found.total, "data-key": "next" }),
  );
}

/** One row by its number, for dots of the map. */
export async function chooseRow(number: number): Promise<void> {
  const known = page?.rows.find((person) => person.row === number);
  if (known) return choose(known);
  const found = await post<RowsPage>("rows", { offset: number, limit: 1, sort: "row" });
  const person = found.rows.find((entry) => entry.row === number);
  if (person) choose(person);
}
