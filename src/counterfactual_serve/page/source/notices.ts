// Waiting, nothing there, something wrong: said the same way on every panel.

import { Refused } from "./api";
import { button, h } from "./dom";
import { icon } from "./icons";

/** While something is worked out. */
export function busy(text: string): HTMLElement {
  return h("p", { class: "busy", "data-live": true }, h("span", { class: "spinner", "aria-hidden": "true" }), text);
}

/** What came back instead of an answer, and the way to try again. */
export function failed(error: unknown, again: () => void): HTMLElement {
  return h(
    "div",
    { class: "notice bad", role: "alert" },
    icon("alert"),
    h("p", {}, explain(error)),
    button("Try again", again, { "data-live": true }),
  );
}

export function explain(error: unknown): string {
  if (error instanceof Refused && (error.status === 503 || error.code === "busy")) {
    return `${error.message} Please try again in a moment.`;
  }
  if (error instanceof Refused) return error.message;
  // Not a word of the server's: a fault of the page itself. Say what it is rather than nothing.
  return `Something went wrong on this page: ${error instanceof Error ? error.message : String(error)}`;
}
