// The sign in the frame of every page that something is wrong, with a link to the overview.

import { get } from "/ui/parts/api.js";
import { h } from "/ui/parts/dom.js";
import { clock, count, counted } from "/ui/parts/format.js";

const INTERVAL_MS = 30000;
/** The age from which on the numbers are marked as old. */
const OLD_MS = 90000;
/** The kinds of problems, the worst first. Notes are counted only if there is nothing worse. */
const KINDS = [{ kind: "bad", noun: "problem", sign: "✗ " }, { kind: "warn", noun: "warning", sign: "! " }, { kind: "note", noun: "note", sign: "" }];
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
  const kinds = known ? KINDS.filter(({ kind }) => known[kind] && (kind !== "note" || !(known.bad || known.warn))) : [];
  const old = known !== null && (known.away || Date.now() - known.atMs > OLD_MS);
  const words = kinds.map(({ kind, noun }) => counted(known[kind], noun)).join(", ");
  const age = old ? `, as of ${clock(known.atMs / 1000, { precise: false })}` : "";
  const text = kinds.length ? `${words}${age}` : "";
  if (text === drawn) return;
  drawn = text;
  if (!kinds.length) return place.replaceChildren();
  place.replaceChildren(h("a", { href: "#/", class: "counts", title: `${text}. The overview says what they are.` },
    kinds.map(({ kind, noun, sign }, at) => [at ? " " : "", h("span", { class: `badge ${kind}${old && !known.away ? " old" : ""}` },
      h("span", { "aria-hidden": "true" }, sign), count(known[kind]), h("span", { class: "unit" }, counted(known[kind], noun).replace(/^[\d,]+/, "")))]),
    h("span", { class: "as-of" }, age)));
}
