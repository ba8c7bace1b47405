// The server's token: from the address (#token=…), or asked for; kept for this tab only.

import { at, h } from "./dom";

const KEY = "ct.token";
let asking: Promise<void> | null = null;

export function token(): string | null {
  return sessionStorage.getItem(KEY);
}

/** Take the token out of the address bar, where others could read it, and where it would end up in bookmarks. */
export function takeTokenFromAddress(): void {
  const found = /^#token=([^&]+)$/.exec(location.hash);
  if (!found?.[1]) return;
  sessionStorage.setItem(KEY, decodeURIComponent(found[1]));
  history.replaceState(null, "", location.pathname + location.search);
}

/** Ask once, however many requests were turned away at the same time. */
export function askForToken(wrong: boolean): Promise<void> {
  asking ??= ask(wrong).finally(() => (asking = null));
  return asking;
}

function ask(wrong: boolean): Promise<void> {
  const dialog = at<HTMLDialogElement>("token-dialog");
  const form = at<HTMLFormElement>("token-form");
  const input = at<HTMLInputElement>("token-input");
  const error = at("token-error");
  error.replaceChildren(...(wrong ? [h("p", { class: "notice bad" }, "The server does not accept this token.")] : []));
  input.value = "";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    // Without a token there is nothing to show, so the dialog cannot be dismissed.
    dialog.oncancel = (event) => event.preventDefault();
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, input.value.trim());
      dialog.close();
      resolve();
    };
  });
}
