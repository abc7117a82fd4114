// Whether this tab may change something. The token, if the server needs one, stays in the tab.

const TOKEN = "quire.token";
const HEADER = "Quire-Changes";
/** Why changes are not possible, by what the server says in the header of each answer. */
const REASONS = {
  "token-needed": "Changes need the token of this server.",
  off: "This server was started without a token, so it changes nothing. To allow changes, start it with --http-token-file FILE.",
  "read-only": "This server is read-only (--http-read-only), so it changes nothing.",
};
const CHECK_TIMEOUT_MS = 10000;
const listeners = new Set();
let said = "";

export const token = () => sessionStorage.getItem(TOKEN);

/** Return "allowed", "token-needed", "off" or "read-only", or "" before the first answer. */
export const access = () => said;

/** Return why nothing can be changed, or "" if it can. */
export const whyNot = () => REASONS[said] ?? "";

/** Call a function each time that the answer of `access` changes, and when a token was entered. */
export const onAccess = (listener) => listeners.add(listener);

/** Note what an answer of the server says about changes. */
export function note(answer) {
  const found = answer.headers.get(HEADER);
  if (found === null || found === said) return;
  said = found;
  for (const listener of listeners) listener();
}

export function keepToken(given) {
  sessionStorage.setItem(TOKEN, given);
  for (const listener of listeners) listener();
}

/** Take the token out of the address, so that it stays neither there nor in the history of the tab. */
export function takeToken() {
  const [path, search = ""] = location.hash.split("?");
  const query = new URLSearchParams(search);
  const given = query.get("token");
  if (given === null) return;
  query.delete("token");
  history.replaceState(null, "", query.size ? `${path}?${query}` : path);
  if (given) sessionStorage.setItem(TOKEN, given);
}

/** Ask the server about a token. Returns whether it accepts it, or null if it does not answer. */
export async function accepted(given) {
  try {
    const answer = await fetch("/api/v1/openapi.json", {
      method: "HEAD", headers: { Authorization: `Bearer ${given}` }, redirect: "error", credentials: "omit",
      signal: AbortSignal.timeout(CHECK_TIMEOUT_MS),
    });
    return answer.status !== 401 && answer.headers.get(HEADER) !== "token-needed";
  } catch {
    return null;
  }
}
