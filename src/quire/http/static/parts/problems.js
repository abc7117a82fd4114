// The sign in the frame of every page that something is wrong, with a link to the overview.

import { get } from "/ui/parts/api.js";
import { h } from "/ui/parts/dom.js";
import { clock, counted } from "/ui/parts/format.js";

const INTERVAL_MS = 30000;
/** The age from which on the numbers are marked as old. */
const OLD_MS = 90000;
const place = document.getElementById("problems");

/** The last numbers: { bad, warn, note, atMs, away }, or null if none are known. */
let known = null;
let askedMs = -Infinity;
let drawn = "";

/** Note the problems that the overview shows, so that both say the same. `oldMs` is the time of the
 * last known state while the metadata store is away, or null. */
export function noteProblems(problems, oldMs) {
  const severity = (one) => problems.filter((problem) => problem.severity === one).length;
  known = { bad: severity("bad"), warn: severity("warn"), note: severity("note"), atMs: oldMs ?? Date.now(), away: oldMs !== null };
  askedMs = Date.now();
  drawProblems();
}

/** Ask the server for the numbers, if the last ones are 30 s old. */
export async function checkProblems() {
  if (Date.now() - askedMs >= INTERVAL_MS) {
    askedMs = Date.now();
    try {
      const { bad, warn, note, age_s: age, old_since_ms: old } = await get("/api/v1/quire/problem_counts");
      known = bad === null ? null : { bad, warn, note, atMs: old ?? Date.now() - (age ?? 0) * 1000, away: old !== null };
    } catch {
      // The last numbers stay, and are marked as old in time.
    }
  }
  drawProblems();
}

/** Show the numbers that are known, with their age if they are old. */
export function drawProblems() {
  const serious = known ? known.bad + known.warn : 0;
  const number = serious || (known?.note ?? 0);
  const [noun, sign, kind] = known?.bad ? ["problem", "✗ ", "bad"] : serious ? ["warning", "! ", "warn"] : ["note", "", "note"];
  const old = known !== null && (known.away || Date.now() - known.atMs > OLD_MS);
  const words = counted(number, noun);
  const age = old ? `, as of ${clock(known.atMs / 1000, { precise: false })}` : "";
  const text = number ? `${words}${age}` : "";
  if (text === drawn) return;
  drawn = text;
  if (!number) return place.replaceChildren();
  place.replaceChildren(h("a", { href: "#/", class: `badge ${kind}${old && !known.away ? " old" : ""}`, title: `${text}. The overview says what they are.` },
    h("span", { "aria-hidden": "true" }, sign), `${number}`, h("span", { class: "unit" }, words.replace(/^[\d,]+/, "")), h("span", { class: "as-of" }, age)));
}
