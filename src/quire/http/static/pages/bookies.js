// The list of bookies.

import { get } from "/ui/parts/api.js";
import { command, empty, signed, stateKind, tiles, usage } from "/ui/parts/controls.js";
import { NONE, h, link, mark, sortable } from "/ui/parts/dom.js";
import { bytes, count, counted, milliseconds, percent, rate } from "/ui/parts/format.js";
import { spaceAge } from "/ui/pages/overview.js";

const LIMIT = 1000;
const KINDS = ["bad", "warn", "note", "good"];
const STATES = ["gone", "read-only", "writable"];

/** Return the place of a bookie in the order of states, in which the worst is the first. */
const worst = (one) => KINDS.indexOf(stateKind(one)) * STATES.length + STATES.indexOf(one.state);

/** Return the worst severity of the problems of these bookies, or "". */
const severity = (some) => KINDS.find((kind) => some.some((one) => stateKind(one) === kind)) ?? "";

/** Return the state of a bookie as marks. */
export const stateMarks = (one) => [one.answers === false ? mark("", one.state) : mark(stateKind(one), signed(stateKind(one), one.state)),
  one.answers === false ? [" ", mark(stateKind(one), signed(stateKind(one), "no answer"))] : "",
  one.compaction_suspended?.length ? [" ", mark("warn", `! ${one.compaction_suspended.join(" and ")} compaction suspended`)] : ""];

const used = (one) => (one.free_bytes === null || !one.total_bytes ? null : 1 - one.free_bytes / one.total_bytes);

/** Return the fullest directory of a bookie that has several, if it is nearly full. */
function fullest(one) {
  const disks = one.disks ?? [];
  const full = disks.length < 2 ? [] : disks.filter((each) => each.fullness).sort((first, second) => used(second) - used(first));
  return full.length ? h("small", { class: "worst" }, `${full[0].directory}: ${percent(used(full[0]))} used`) : "";
}

export function disk(one) {
  if (one.free_bytes === null) return one.state === "gone" || one.answers === false ? "–" : spaceAge(null);
  return [usage(`disk of ${one.id}`, one.total_bytes - one.free_bytes, one.total_bytes, one.fullness), fullest(one), spaceAge(one.space_age_s)];
}

const COLUMNS = [
  { text: "Bookie", by: (one) => one.id }, { text: "State", by: worst }, { text: "Rack", by: (one) => one.location },
  { text: "Disk", by: used }, { text: "Ledgers", type: "number", by: (one) => one.rates?.ledgers },
  { text: "Adds", type: "number", by: (one) => one.rates?.adds_per_s },
  { text: "Reads", type: "number", by: (one) => one.rates?.reads_per_s }, { text: "Add, p99", type: "number", by: (one) => one.rates?.add_p99_ms },
  { text: "Sync, p99", type: "number", by: (one) => one.rates?.sync_p99_ms }];

/** Return a rate of entries, and below it that of bytes. */
const both = (entries, size) => entries === null || entries === undefined ? NONE : [rate(entries), size === null || size === undefined ? "" : h("small", { class: "second" }, rate(size, "B"))];

const cells = (one) => [
  link(one.id, "bookie", [one.id]), stateMarks(one), one.location ?? "–", disk(one), count(one.rates?.ledgers),
  both(one.rates?.adds_per_s, one.rates?.add_bytes_per_s), both(one.rates?.reads_per_s, one.rates?.read_bytes_per_s),
  milliseconds(one.rates?.add_p99_ms), milliseconds(one.rates?.sync_p99_ms),
];

/** The filter of the list. It survives the refresh of the page. */
const wanted = { text: "", state: "" };
const CHOICES = [["", "any"], ["writable", "writable"], ["read-only", "read-only"], ["gone", "gone"], ["full", "nearly full"], ["silent", "no answer"]];

function fits(one) {
  const part = wanted.text.toLowerCase();
  const named = `${one.id} ${one.location ?? ""} ${one.host ?? ""}`.toLowerCase().includes(part);
  const state = { "": true, full: Boolean(one.fullness), silent: one.answers === false }[wanted.state] ?? one.state === wanted.state;
  return named && state;
}

/** Draws the list again for another filter. */
let redraw = () => {};

function filter() {
  const text = h("input", { id: "bookie-part", type: "search", autocomplete: "off", maxlength: 200, value: wanted.text, oninput: () => { wanted.text = text.value; redraw(); } });
  const state = h("select", { id: "bookie-state", onchange: () => { wanted.state = state.value; redraw(); } },
    CHOICES.map(([value, words]) => h("option", { value, selected: value === wanted.state }, words)));
  return h("form", { role: "search", "aria-label": "Filter", onsubmit: (event) => event.preventDefault() },
    h("div", null, h("label", { for: "bookie-part" }, "Part of an id, host or rack"), text),
    h("div", null, h("label", { for: "bookie-state" }, "State"), state));
}

function figures(all) {
  const those = (state) => all.filter((one) => one.state === state);
  const of = (state) => those(state).length;
  const silent = all.filter((one) => one.answers === false);
  const writable = of("writable") - silent.filter((one) => one.state === "writable").length;
  const told = all.filter((one) => one.free_bytes !== null);
  const sum = (name) => told.reduce((total, one) => total + one[name], 0);
  const full = all.filter((one) => one.fullness).length;
  return tiles([
    { name: "Writable", value: `${count(writable)} of ${count(all.length)}`, below: silent.length ? `${count(silent.length)} ${silent.length === 1 ? "does" : "do"} not answer` : "accept new entries", kind: writable ? severity(silent) : "bad" },
    { name: "Read-only", value: count(of("read-only")), below: "serve what they have", kind: severity(those("read-only")) },
    { name: "Gone", value: count(of("gone")), below: "not registered", kind: severity(those("gone")) },
    { name: "Free space", value: told.length ? bytes(sum("free_bytes")) : "–", below: told.length ? `of ${bytes(sum("total_bytes"))} on registered bookies` : "not known yet" },
    { name: "Nearly full", value: count(full), below: "bookies with a full or nearly full disk", kind: full ? "warn" : "" },
  ]);
}

export const bookies = {
  title: () => "Bookies",
  controls: () => {
    wanted.text = wanted.state = "";
    return filter();
  },
  load: ({ query }, signal) => get("/api/v1/quire/bookies", {
    severity: true, gone: true, limit: LIMIT, ...(query.has("after") ? { after: query.get("after") } : {}),
  }, signal),
  oldSince: (data) => data.old_since_ms ?? null,
  render(data) {
    if (!data.bookies.length) return empty("There are no bookies", "Start one:", "quire bookie start --dir DIR");
    const place = h("div");
    redraw = () => {
      // The sort is stable: bookies of one state stay in the order of their ids.
      const shown = data.bookies.filter(fits).sort((one, other) => one.id.localeCompare(other.id, undefined, { numeric: true }));
      const caption = shown.length === data.bookies.length ? counted(shown.length, "bookie") : `${shown.length} of ${counted(data.bookies.length, "bookie")}`;
      place.replaceChildren(shown.length ? sortable("bookies", caption, COLUMNS, shown, cells, { text: "State", down: false })
        : empty("No bookie matches the filter"));
    };
    redraw();
    const silent = data.bookies.some((one) => one.state !== "gone" && !one.http.length);
    return h("div", null, figures(data.bookies), h("div", { class: "spaced" }, place),
      silent ? [h("p", { class: "quiet" }, "A bookie without an HTTP server reports no rates. To see its rates, start it with an address for HTTP:"), command("quire bookie start --dir DIR --http HOST:PORT")] : "",
      h("nav", { class: "pager", "aria-label": "Pages of bookies" }, data.next === null ? "" : link("Next page", "bookies", [], { after: data.next })));
  },
};
