// What somebody on call wants to know first: what is wrong, then the key figures, then the rest.

import { get } from "/ui/parts/api.js";
import { advice, signed, stateKind, tiles, usage } from "/ui/parts/controls.js";
import { address, h, link, mark, section } from "/ui/parts/dom.js";
import { bytes, clock, count, counted, localTimes, milliseconds, percent, rate, seconds } from "/ui/parts/format.js";
import { noteProblems } from "/ui/parts/problems.js";
import { idForm } from "/ui/pages/ledgers.js";
import { loadSeries, newest, OF_CLUSTER, seriesSection } from "/ui/parts/series.js";

const OLD_S = 5;
const DAY_S = 86400;
/** Seconds after which the age of the search for missing ledgers is shown. */
const SEARCH_OLD_S = 15;
/** The largest number of bookies that a closed note links to. */
const NAMED = 8;
const SIGNS = { bad: "✗ Wrong: ", warn: "! Warning: ", note: "Note: " };

/** Return a sentence of the server with its full stop, and its times as the page shows them. */
const stopped = (text) => `${localTimes(text)}${/[.:]$/.test(text) ? "" : "."}`;

/** Return a text that begins with a word as a sentence begins. */
const capital = (text) => text.replace(/^[a-z]+(?= )/, (word) => word[0].toUpperCase() + word.slice(1));

/** Return a text in which each key of `links` is a link to its value. */
function linked(text, links) {
  const names = Object.keys(links).sort((one, other) => other.length - one.length).map((one) => one.replace(/[^\w]/g, "\\$&"));
  if (!names.length) return text;
  const parts = text.split(new RegExp(`((?<![\\w.:])(?:${names.join("|")})(?![\\w.]*\\w))`));
  return parts.map((part, at) => (at % 2 ? h("a", { href: links[part] }, part) : part));
}

/** Return since when a problem is known. It may be older if the server did not look before. */
function sinceText({ since_ms: ms, since_before: before }) {
  const age = (Date.now() - ms) / 1000;
  const at = clock(ms / 1000, { dated: age > DAY_S, precise: false });
  return before ? `since before ${at}` : `since ${at}, ${seconds(Math.max(0, age))}`;
}

/** The notes that are open, by their first words. It survives the refresh of a page. */
const opened = new Set();

/** Return the cause and the rest of a sentence, which a colon divides. A colon in brackets belongs to the cause. */
function divided(text) {
  let depth = 0;
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "(") depth += 1;
    else if (text[at] === ")") depth -= 1;
    else if (at && depth <= 0 && text.startsWith(": ", at)) return [text.slice(0, at), text.slice(at + 2)];
  }
  return [text, ""];
}

/** Return one problem: what is wrong, then in a list what to do, what is at risk, and what is being done. */
function problem(one, links, folded) {
  const said = localTimes(one.what);
  const [cause, more] = divided(said);
  const ids = (one.bookies ?? []).filter((id) => links[id] !== "");
  const all = { ...Object.fromEntries(ids.map((id) => [id, address("bookie", [id])])), ...links };
  const known = Object.fromEntries(Object.entries(all).filter(([, href]) => href));
  const row = (name, content) => (content ? [h("dt", null, name), h("dd", null, content)] : []);
  const title = h("strong", null, SIGNS[one.severity]);
  const since = one.since_ms ? h("span", { class: "quiet since" }, sinceText(one)) : "";
  const below = [
    more ? h("p", { class: "more" }, linked(stopped(capital(more)), known)) : "",
    one.items?.length ? h("ul", { class: "items" }, one.items.map((item) => h("li", null, linked(item, known)))) : "",
    h("dl", { class: "answers" }, row("What to do", one.next ? advice(one.next, "") : ""), row("At risk", one.risk ? linked(stopped(one.risk), known) : ""),
      row("Being done", one.doing ? stopped(one.doing) : ""),
      row(ids.length === 1 ? "Bookie" : "Bookies", folded && ids.length ? ids.slice(0, NAMED).map((id, at) => [at ? ", " : "", link(id, "bookie", [id])]) : "")),
  ];
  const end = more ? "" : one.items?.length ? ":" : /[.:]$/.test(cause) ? "" : ".";
  if (!folded) return h("li", { class: one.severity }, h("p", { class: "cause" }, title, linked(cause, known), end, since), below);
  const details = h("details", { open: opened.has(cause), ontoggle: () => (details.open ? opened.add(cause) : opened.delete(cause)) },
    h("summary", { class: "cause", id: `note-${cause}` }, title, cause, end, since), below);
  return h("li", { class: one.severity }, details);
}

/** Return the problems as cards, the worst first. Notes are closed if there is something worse. The ids of bookies are
 * links, and so are the other keys of `links`; an id with the value "" is none. */
export function problemList(problems, links = {}) {
  const worse = problems.some((one) => one.severity !== "note");
  return h("ul", { class: "problems" }, problems.map((one) => problem(one, links, worse && one.severity === "note")));
}

/** Return the age of the bookies' disk space figures, if they are not current. */
export const spaceAge = (age) => age === null || age === undefined ? h("small", null, "not known yet")
  : age >= OLD_S ? h("small", null, `as of ${seconds(age)} ago`) : "";

/** Say how far the search for missing ledgers has come, or how old its result is if it is not current. */
function searchAge(lost) {
  if (lost === null || !lost.whole || lost.age_s === null) return h("p", { class: "quiet" }, `The search for missing ledgers has not covered all streams, objects and datasets yet (${count(lost === null ? 0 : lost.records)} so far).`);
  return lost.age_s < SEARCH_OLD_S ? "" : h("p", { class: "quiet" }, `Last search for missing ledgers of streams, objects and datasets: ${seconds(lost.age_s)} ago.`);
}

function keyFigures(data) {
  const { bookies, autorecovery } = data;
  const [fullest] = data.fullest;
  const share = fullest ? 1 - fullest.free_bytes / fullest.total_bytes : 0;
  const silent = data.silent_bookies ? `${count(data.silent_bookies)} ${data.silent_bookies === 1 ? "does" : "do"} not answer` : "";
  const away = [silent, bookies["read-only"] ? `${count(bookies["read-only"])} read-only` : "", bookies.gone ? `${count(bookies.gone)} gone` : ""].filter(Boolean);
  const all = bookies.writable + bookies["read-only"] + bookies.gone;
  const looked = autorecovery.enabled && autorecovery.auditor;
  return tiles([
    { name: "Writable bookies", value: `${count(bookies.writable - (data.silent_writable ?? 0))} of ${count(all)}`, below: away.join(", ") || "all of them", kind: bookies.writable ? data.away_severity : "bad" },
    { name: "Fullest bookie", value: fullest ? `${percent(share)} used` : "–", below: data.space_age_s === null ? "not known yet" : [`${bytes(data.free_bytes)} of ${bytes(data.total_bytes)} free in all registered bookies `, spaceAge(data.space_age_s)], kind: fullest?.fullness },
    { name: "Under-replicated ledgers", value: (autorecovery.marked_whole ? "" : "at least ") + count(autorecovery.marked), below: looked ? `${count(autorecovery.locked)} being repaired` : "nobody looks for them", kind: autorecovery.marked || bookies.gone && !looked ? "warn" : "" },
    { name: "Autorecovery", value: autorecovery.enabled ? "on" : "switched off", below: autorecovery.auditor ? `auditor ${autorecovery.auditor}` : "no auditor", kind: autorecovery.enabled && autorecovery.auditor ? "" : "warn" },
  ]);
}

/** Draw the rates and latencies. While the metadata store is away, the bookies still report them to the charts. */
function load({ rates, series, old_since_ms: old }) {
  // The first answer of a server has no rates of its own yet, because they need two readings.
  const [first, second] = [(name) => rates[name] ?? null, (name) => newest(series, name)];
  const now = (name) => (old ? second(name) ?? first(name) : first(name) ?? second(name));
  const note = (...words) => h("p", { class: "quiet" }, words);
  return h("section", { class: "current" }, h("h2", null, "Load"),
    rates.bookies ? [tiles([
      { name: "Entries added", value: rate(now("adds_per_s")), below: rate(now("add_bytes_per_s"), "B") },
      { name: "Read requests", value: rate(now("reads_per_s")), below: rate(now("read_bytes_per_s"), "B") },
      { name: "Add latency, p99", value: milliseconds(now("add_p99_ms")), below: `p50 ${milliseconds(now("add_p50_ms"))}` },
      { name: "Disk sync latency, p99", value: milliseconds(now("sync_p99_ms")), below: `p50 ${milliseconds(now("sync_p50_ms"))}` },
    ]), note(`Rates are sums over ${counted(rates.bookies, "bookie")}, and count every replica. A read request may return many entries. Latencies are those of the slowest bookie in the last minute or two.`)]
      : note("No bookie reports its rates to this server. A bookie reports them if it runs with ", h("code", null, "--http HOST:PORT"),
      ". If its HTTP server needs a token, this server needs ", h("code", null, "--http-bookies-token-file FILE"), "."));
}

/** Draw the disks of the fullest bookies. */
function disks(data) {
  const all = data.bookies.writable + data.bookies["read-only"];
  const shown = data.fullest;
  if (!shown.length) return "";
  return section("Disks", h("ul", { class: "disks card" }, shown.map((one) => h("li", null,
    h("div", { class: "name" }, link(one.id, "bookie", [one.id]), one.state === "writable" ? "" : mark(stateKind(one), signed(stateKind(one), one.state))),
    usage(`disk of ${one.id}`, one.total_bytes - one.free_bytes, one.total_bytes, one.fullness)))),
  h("p", { class: "quiet" }, shown.length < all ? `The fullest ${shown.length} of ${counted(all, "bookie")}. ` : "", link("All bookies", "bookies")));
}

export const overview = {
  title: () => "Overview",
  controls: () => idForm("Ledger id", "ledger"),
  load: async (where, signal) => {
    const [now, series] = await Promise.all([get("/api/v1/quire/overview", {}, signal), loadSeries(signal)]);
    noteProblems(now.problems, now.old_since_ms ?? null);
    return { ...now, series };
  },
  oldSince: (data) => data.old_since_ms ?? null,
  render(data, where, act) {
    return h("div", null,
      h("section", { class: "current" }, h("h2", null, "What is wrong"), data.problems.length ? problemList(data.problems)
        : h("p", { class: "alert good" }, "✓ No problems were found"), searchAge(data.lost_ledgers)),
      h("section", null, h("h2", null, "Key figures", data.old_since_ms ? h("small", { class: "quiet" }, ` as of ${clock(data.old_since_ms / 1000)}`) : ""), keyFigures(data),
        h("p", { class: "quiet" }, link("Repair and jobs", "work"))),
      load(data), disks(data),
      seriesSection("Over time", data.series, OF_CLUSTER, () => act(() => {})),
      h("p", { class: "quiet" }, `Cluster ${data.instance_id}, metadata ${data.metadata}`));
  },
};
