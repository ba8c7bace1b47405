// Whether the server is there. Lost: a message that stays until it is back, while the page keeps all it has.

import { announce, at } from "./dom";

const CALM = 5000;
const EAGER = 1000;

let up = true;
let checking: Promise<boolean> | null = null;
let served: string | null = null;
let waiting: (() => void)[] = [];
let timer = 0;

/** What a request has just found out. */
export function report(reached: boolean): void {
  if (reached === up) return;
  up = reached;
  at("connection").hidden = up;
  if (up) {
    announce("Connected again.");
    waiting.forEach((resolve) => resolve());
    waiting = [];
  }
  schedule();
}

/** Resolves once the server answers; rejects if the request is given up meanwhile. */
export function waitUntilBack(signal?: AbortSignal): Promise<void> {
  if (up) return Promise.resolve();
  return new Promise((resolve, reject) => {
    waiting.push(resolve);
    signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}

/** Ask after the server from time to time; `model` is the one this page shows. */
export function watch(model: string): void {
  served = model;
  schedule();
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) void check();
  });
}

function schedule(): void {
  window.clearTimeout(timer);
  timer = window.setTimeout(() => void check(), up ? CALM : EAGER);
}

export function check(): Promise<boolean> {
  checking ??= probe().finally(() => (checking = null));
  return checking;
}

async function probe(): Promise<boolean> {
  let reached = false;
  try {
    const response = await fetch("health", { cache: "no-store", signal: AbortSignal.timeout(4000) });
    reached = response.ok;
    if (reached) notice(((await response.json()) as { model?: string }).model ?? null);
  } catch {
    // Reported below: whatever went wrong, the server is not there.
  }
  report(reached);
  schedule();
  return reached;
}

/** A server that came back with another model: what is shown is no longer what it would answer. */
function notice(model: string | null): void {
  if (served && model && model !== served) at("changed-model").hidden = false;
}
