// Receipts: save one of a plan, and check one later.

import { post, Refused } from "./api";
import type { Plan, Verdict } from "./contract";
import { announce, at, button, fill, h } from "./dom";
import { save } from "./files";
import { icon } from "./icons";
import { busy, explain, failed } from "./notices";
import type { Asked } from "./state";

/** Let the server write a receipt, and hand it over as a file. */
export async function saveReceipt(asked: Asked, plan: Plan): Promise<void> {
  try {
    const body = { row: asked.row, plan: plan.values, question: asked.question, model: "main" };
    const { receipt } = await post<{ receipt: object }>("receipt", body);
    save(`receipt ${asked.title} plan ${plan.option}.json`, JSON.stringify(receipt, null, 2), "application/json");
    announce("The receipt was saved.");
  } catch (error) {
    const place = at("plans-content");
    place.prepend(failed(error, () => void saveReceipt(asked, plan)));
  }
}

export function buildReceipt(): void {
  const input = h("textarea", { id: "receipt-text", rows: 8, spellcheck: "false", placeholder: "{ … }" });
  const file = h("input", { type: "file", id: "receipt-file", accept: ".json,application/json" });
  const result = h("div", { id: "receipt-result", "aria-live": "polite" });
  file.addEventListener("change", () => void readFile(file, input, result));
  fill(
    at("receipt-content"),
    h(
      "p",
      {},
      "A receipt says what was asked, what was advised, when, and by which model file. Whoever has it and the model can check later that nothing in it was changed and that the advice holds: here, or with ",
      h("code", {}, "ct verify"),
      ".",
    ),
    h(
      "form",
      {
        class: "receipt",
        "data-live": true,
        on: {
          submit: (event) => {
            event.preventDefault();
            void checkText(input.value, result);
          },
        },
      },
      h("div", { class: "field" }, h("label", { for: "receipt-file" }, "A receipt file"), file),
      h("div", { class: "field" }, h("label", { for: "receipt-text" }, "Or its text"), input),
      h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Check the receipt")),
    ),
    result,
  );
}

async function readFile(file: HTMLInputElement, input: HTMLTextAreaElement, result: HTMLElement): Promise<void> {
  const chosen = file.files?.[0];
  if (!chosen) return;
  input.value = await chosen.text();
  await checkText(input.value, result);
}

async function checkText(text: string, result: HTMLElement): Promise<void> {
  let receipt: unknown;
  try {
    receipt = JSON.parse(text);
  } catch {
    const message = text.trim()
      ? "This is not a receipt: it is not valid JSON."
      : "Choose a file, or paste the text of a receipt.";
    return fill(result, h("p", { class: "notice bad" }, icon("alert"), message));
  }
  fill(result, busy("Checking …"));
  try {
    fill(result, verdict(await post<Verdict>("verify", { receipt })));
  } catch (error) {
    const message =
      error instanceof Refused
        ? h("p", { class: "notice bad" }, icon("alert"), explain(error))
        : failed(error, () => void checkText(text, result));
    fill(result, message);
  }
}

function verdict({ valid, checks }: Verdict): HTMLElement {
  const lines = checks.map(({ name, passed, message }) =>
    h(
      "li",
      { class: passed ? "good" : "bad" },
      icon(passed ? "yes" : "no"),
      h("span", { class: "unseen" }, passed ? "passed: " : "failed: "),
      h("strong", {}, name),
      h("span", {}, message),
    ),
  );
  return h(
    "div",
    {},
    h(
      "p",
      { class: `notice ${valid ? "good" : "bad"}` },
      icon(valid ? "yes" : "no"),
      h("strong", {}, valid ? "The receipt holds." : "The receipt does not hold."),
    ),
    h("ul", { class: "checklist" }, lines),
    button("Clear", () => clear(), { "data-live": true }),
  );
}

function clear(): void {
  buildReceipt();
  at("receipt-file").focus();
}
