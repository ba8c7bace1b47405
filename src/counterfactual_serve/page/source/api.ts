// The one way to the server: relative urls, a token where it wants one, and patience while it is away.

import type { Question, Row, Which } from "./contract";
import { report, waitUntilBack } from "./connection";
import { askForToken, token } from "./token";

/** What the server refuses, in its own words. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly field: string | null,
  ) {
    super(message);
  }
}

/** Whether an error only says that a newer request took the place of this one. */
export function superseded(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

export function get<T>(name: string, signal?: AbortSignal): Promise<T> {
  return call<T>(name, undefined, signal);
}

export function post<T>(name: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return call<T>(name, body, signal);
}

/** The body of an explain request. */
export function explainBody(
  row: Row,
  question: Question,
  options: number,
  model: Which,
  lasting: number | null,
): object {
  return { rows: [row], ...question, options, model, ...(lasting === null ? {} : { lasting }) };
}

/**
 * Send, and send again once the server is back. Every request of the page may be repeated, because none changes
 * anything on the server; so a restart in the middle of a search is only a pause.
 */
async function call<T>(name: string, body: unknown, signal?: AbortSignal): Promise<T> {
  for (;;) {
    const response = await send(name, body, signal);
    if (response === null) await waitUntilBack(signal);
    else if (response.status === 401) await askForToken(token() !== null);
    else return read<T>(response);
  }
}

/** The answer; `null` if there was none. */
async function send(name: string, body: unknown, signal?: AbortSignal): Promise<Response | null> {
  const headers: Record<string, string> = { Accept: "application/json" };
  const secret = token();
  if (secret) headers["Authorization"] = `Bearer ${secret}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    const sent = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
    const response = await fetch(`api/v1/${name}`, { ...sent, headers, signal: signal ?? null, cache: "no-store" });
    report(true);
    return response;
  } catch (error) {
    if (superseded(error)) throw error;
    report(false);
    return null;
  }
}

async function read<T>(response: Response): Promise<T> {
  const text = await response.text();
  let found: unknown = null;
  try {
    found = JSON.parse(text);
  } catch {
    // A proxy in between answers with pages of its own; the status below says enough.
  }
  if (response.ok && found !== null) return found as T;
  const error = (found as { error?: { code?: string; message?: string; field?: string | null } } | null)?.error;
  const said = error?.message ?? `The server answered ${response.status} ${response.statusText}.`.replace(" .", ".");
  throw new Refused(response.status, error?.code ?? "unknown", said, error?.field ?? null);
}
