// What an audit says beyond measures: whether groups can be guessed, and whether advice still holds later.

import type { Guess, Later, Proxy } from "./audit_document";
import { say } from "./audit_measure";
import { intervalBar } from "./bars";
import { type Child, h, scroller } from "./dom";
import { brief, listed } from "./words";

export function proxies(all: Proxy[]): HTMLElement {
  const guess = (entry: Guess): Child =>
    entry.value === null
      ? (entry.reason ?? "–")
      : `${brief(entry.value)} (${brief(entry.low ?? NaN)} to ${brief(entry.high ?? NaN)})`;
  const telling = (entry: Guess): string =>
    listed(entry.information.slice(0, 3).map((one) => `${one.feature} ${brief(one.value)}`)) || "–";
  const block = (proxy: Proxy): HTMLElement =>
    h(
      "figure",
      { class: "measure" },
      h("figcaption", {}, h("h4", {}, proxy.title), h("p", { class: "note" }, proxy.meaning)),
      scroller(
        proxy.title,
        {},
        h(
          "table",
          {},
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["Guessed from", "How well", "Most telling"].map((title) => h("th", { scope: "col" }, title)),
            ),
          ),
          h(
            "tbody",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "row" }, "columns that may change"),
              h("td", {}, guess(proxy.features)),
              h("td", {}, telling(proxy.features)),
            ),
            proxy.advice.map((entry) =>
              h(
                "tr",
                {},
                h("th", { scope: "row" }, `plans of ${entry.name}`),
                h("td", {}, guess(entry)),
                h("td", {}, telling(entry)),
              ),
            ),
          ),
        ),
      ),
    );
  return h(
    "section",
    { class: "block" },
    h("h3", {}, "Do other columns give a group away?"),
    h("div", { class: "measures" }, all.map(block)),
  );
}

export function later(all: Later[]): HTMLElement {
  const lines = all.flatMap((check) =>
    check.models.map((entry, i) =>
      h(
        "tr",
        { class: i ? "second" : null },
        i === 0
          ? h(
              "th",
              { scope: "row", rowspan: check.models.length },
              check.title,
              h("small", { class: "note" }, check.meaning),
            )
          : null,
        h("td", {}, entry.name),
        h("td", { class: "bars" }, intervalBar(entry.value, entry.low, entry.high, 1, i)),
        h("td", { class: "right" }, say(entry.value, "share")),
        h(
          "td",
          { class: "right note" },
          entry.low === null ? "" : `${say(entry.low, "share")} to ${say(entry.high, "share")}`,
        ),
      ),
    ),
  );
  const head = ["Change", "Model", "", "Still holds", "Interval"].map((title) =>
    title ? h("th", { scope: "col" }, title) : h("td"),
  );
  return h(
    "section",
    { class: "block" },
    h("h3", {}, "Does today's advice still hold later?"),
    scroller("Later", {}, h("table", { class: "later" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, lines))),
  );
}
