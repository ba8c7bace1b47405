// The model card: all of it text that the server has already put into words.

import { get, superseded } from "./api";
import { at, fill, h, scroller } from "./dom";
import { busy, failed } from "./notices";

interface Section {
  id: string;
  title: string;
  paragraphs: string[];
  rows: [string, string][];
  items: string[];
  tables: { title: string; header: string[]; rows: string[][] }[];
}
interface Card {
  title: string;
  summary: string;
  sections: Section[];
}

let loaded = false;

/** Measuring takes a while, so the card is fetched when somebody looks at it. */
export async function showCard(): Promise<void> {
  if (loaded) return;
  loaded = true;
  fill(
    at("card-content"),
    busy("Writing the model card. The first time, the model is measured: up to half a minute …"),
  );
  try {
    const card = await get<Card>("card");
    fill(
      at("card-content"),
      h("p", { class: "lead" }, card.summary),
      h("div", { class: "card-sections" }, card.sections.map(section)),
    );
  } catch (error) {
    loaded = false;
    if (!superseded(error))
      fill(
        at("card-content"),
        failed(error, () => void showCard()),
      );
  }
}

function section(part: Section): HTMLElement {
  return h(
    "section",
    { class: "block" },
    h("h3", {}, part.title),
    part.paragraphs.map((text) => h("p", {}, text)),
    part.rows.length
      ? h(
          "dl",
          { class: "pairs" },
          part.rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
        )
      : null,
    part.items.length
      ? h(
          "ul",
          {},
          part.items.map((text) => h("li", {}, text)),
        )
      : null,
    part.tables.map(table),
  );
}

function table({ title, header, rows }: Section["tables"][number]): HTMLElement {
  const label = title || header.join(", ");
  return scroller(
    label,
    {},
    h(
      "table",
      {},
      h("caption", { class: title ? null : "unseen" }, label),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          header.map((name) => h("th", { scope: "col" }, name)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((cells) =>
          h(
            "tr",
            {},
            cells.map((text, i) => (i ? h("td", {}, text) : h("th", { scope: "row" }, text))),
          ),
        ),
      ),
    ),
  );
}
