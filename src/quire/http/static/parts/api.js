// Requests to the server of this page.

import { note, token } from "/ui/parts/access.js";

const TIMEOUT_MS = 40000;

export class ApiError extends Error {
  constructor(status, said) {
    super(said.what);
    Object.assign(this, { status, remedy: said.remedy, known: said.outcome_known, kind: said.kind });
  }
}

/** Return an integer beyond 2^53 as a BigInt, so that large ledger ids stay exact. */
function exact(key, value, context) {
  const large = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
  return large && context?.source ? BigInt(context.source) : value;
}

/** Make a request, and return its answer. `reads` says that it changes nothing, whatever its method
 * is. */
export async function ask(method, path, { query = {}, body, signal, reads = method === "GET" } = {}) {
  const search = new URLSearchParams(query).toString();
  const headers = {};
  if (token()) headers.Authorization = `Bearer ${token()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const signals = [AbortSignal.timeout(TIMEOUT_MS), ...(signal ? [signal] : [])];
  let answer, text;
  try {
    answer = await fetch(search ? `${path}?${search}` : path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.any(signals), redirect: "error", credentials: "omit",
    });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, {
      what: "The server of this page does not answer", remedy: "Check that quire ui is still running.",
      outcome_known: reads,
    });
  }
  note(answer);
  let value = null;
  try {
    value = JSON.parse(text, exact);
  } catch {
    if (answer.ok) throw new ApiError(answer.status, { what: "The server's answer is not JSON", remedy: "" });
  }
  if (!answer.ok) {
    const said = value?.error ?? { what: `The server answered with status ${answer.status}`, remedy: "" };
    throw new ApiError(answer.status, reads ? { ...said, outcome_known: true } : said);
  }
  return value;
}

export const get = (path, query, signal) => ask("GET", path, { query, signal });
