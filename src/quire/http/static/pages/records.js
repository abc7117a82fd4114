// The records of a stream, from any place on.

import { empty } from "/ui/parts/controls.js";
import { address, h } from "/ui/parts/dom.js";
import { bytes, count, counted, time } from "/ui/parts/format.js";
import { pageTabs, pager, selection } from "/ui/parts/lists.js";
import { askFor, failure, inline, lines, passwordForm, passwordOf, visible } from "/ui/parts/payload.js";

export const PAGE = 20;
export const SHOWN_BYTES = 4096;
const PLACES = [["earliest", "the oldest record"], ["last", "the newest records"], ["time", "a time"], ["position", "a position"],
  ["seq", "a sequence number"], ["txid", "a transaction id"]];
/** The kinds of places that need no value. */
const ENDS = ["earliest", "last", "newest"];
const HINTS = { position: "segment:entry:slot, such as 5:12:3", seq: "a number", txid: "a number" };
export const STOPPED = {
  bytes: "This page ends early, because an answer is limited to 1 MiB of payloads and 16 MiB read from bookies.",
  time: "This page ends early, because the bookies took longer than 10 s.",
};

/** Return what is above a stream's pages. */
export const streamCrumbs = ({ parts: [namespace] }) => [["Namespaces", address("streams")], [`Streams of ${namespace}`, address("streams", [namespace])]];

export const streamTabs = (namespace, name, here) => pageTabs(`Stream ${name}`, [
  ["Segments and lag", address("stream", [namespace, name]), here === "segments"], ["Records", address("stream", [namespace, name, "records"]), here === "records"]]);

/** Return the kind and the value of a place, such as "seq:7". */
export function parsed(place) {
  const [kind] = place.split(":", 1);
  if (ENDS.includes(kind)) return [kind, ""];
  if (["time", "seq", "txid"].includes(kind)) return [kind, place.slice(kind.length + 1)];
  return ["position", place];
}

/** Return a time as the field for a local date and time has it. */
function local(iso) {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return "";
  return new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

/** Return a form that asks at which place to begin. `places` are options: [kind, text]. `more` are
 * further fields, and `go` shows the records from a place on. */
export function placeForm(places, [kind, value], more, go) {
  const place = selection("records-place", "Begin at", places, kind);
  const input = h("input", { id: "records-value", autocomplete: "off", maxlength: 100 });
  const label = h("label", { for: "records-value" });
  const field = h("div", null, label, input);
  const change = () => {
    const chosen = place.value;
    const shown = !ENDS.includes(chosen);
    field.hidden = !shown;
    input.required = shown;
    input.type = chosen === "time" ? "datetime-local" : "text";
    if (chosen === "time") input.step = "1";
    input.placeholder = HINTS[chosen] ?? "";
    label.textContent = places.find(([one]) => one === chosen)[1].replace(/^an? /, "").replace(/^./, (first) => first.toUpperCase());
    input.value = chosen === kind ? (kind === "time" ? local(value) : value) : "";
  };
  place.field.querySelector("select").addEventListener("change", change);
  change();
  const submit = (event) => {
    event.preventDefault();
    const typed = input.value.trim();
    const from = { last: () => `last:${PAGE}`, time: () => `time:${new Date(typed).toISOString()}`, position: () => typed }[place.value]?.();
    go(from ?? (ENDS.includes(place.value) ? place.value : `${place.value}:${typed}`));
  };
  return h("form", { role: "search", onsubmit: submit }, place.field, field, more, h("button", null, "Show"));
}

const controls = ({ parts: [namespace, name], query }) => placeForm(PLACES, parsed(query.get("from") ?? "earliest"), [],
  (from) => { location.hash = address("stream", [namespace, name, "records"], { from }); });

const GAPS = { truncated: "were truncated", lost: "are lost, because their ledger no longer exists" };

/** Return the key, the event time and the headers of a record that has any of them. */
function envelope(one) {
  if (!one.headers) return "";
  const rows = one.headers.map((header) => [visible(header.name), inline(header)]);
  if (one.event_time) rows.unshift(["Event time", one.event_time]);
  if (one.key) rows.unshift(["Key", inline(one.key)]);
  const left = one.headers_count - one.headers.length;
  if (left) rows.push(["", `and ${count(left)} more headers`]);
  return h("dl", { class: "envelope" }, rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

/** Return an item that is no record: a gap, or an entry that cannot be read. `where` names its stream. */
function exception(one, where) {
  if (one.kind === "gap") return h("div", { class: one.why === "lost" ? "alert bad" : "alert warn" },
    h("p", null, `${one.why === "lost" ? "✗" : "!"} ${where}Records from ${one.position} to just before ${one.behind} ${GAPS[one.why] ?? one.why}.`));
  return [h("h3", { class: "mono" }, where, one.position), failure(one.error)];
}

const ORDERS = { true: "the newest first", false: "the oldest first" };

/** Return the records of an answer as a list of lines. `newest` says that the newest is the first. If the
 * records are those of several streams, `where` returns the cells that say of which. */
export function recordLines(items, newest, where = null) {
  const known = items.filter((one) => one.kind === "record");
  const timed = known.some((one) => one.time);
  const keyed = known.some((one) => one.key);
  const columns = [["position", "Position"], timed ? ["time", "Time"] : ["txid", "Transaction id"], ...(where ? [["partition", "Partition"]] : []),
    ...(keyed ? [["key", "Key"]] : []), ["size", "Size"], ["value", "Value"]];
  const whole = (one) => (kind) => [h("p", { class: "quiet" }, [one.sequence === null ? "" : `sequence ${count(one.sequence)}`, `txid ${one.txid}`, one.time ?? "", kind].filter(Boolean).join(" · "),
    where ? [" · ", where.link(one)] : ""), envelope(one)];
  const item = (one) => {
    if (one.kind !== "record") return { element: exception(one, where ? `Partition ${one.partition}: ` : "") };
    const cells = [one.position, timed ? (one.time ? time(Date.parse(one.time)) : `txid ${one.txid}`) : `${one.txid}`, ...(where ? [`${one.partition}`] : []),
      ...(keyed ? [one.key ? inline(one.key) : h("span", { class: "quiet" }, "–")] : []), bytes(one.bytes)];
    const id = where ? `${one.partition}/${one.position}` : one.position;
    return { id, name: `record ${id}`, one, cells, more: whole(one) };
  };
  const shown = newest ? [...items].reverse() : items;
  return [h("p", { class: "quiet order" }, `${counted(known.length, "record")}, ${ORDERS[newest]}`), lines("Records on this page", columns, shown.map(item))];
}

export const NO_RECORDS = "This is the end of what bookies know to be acknowledged. A record that was appended a moment ago may follow.";

export const records = {
  title: ({ parts }) => `Records of stream ${parts[1]}`,
  crumbs: streamCrumbs,
  interval: null,
  controls,
  load: ({ parts: [namespace, name], query }, signal) => askFor("/api/v1/quire/stream/records", {
    namespace, name, from: query.get("from") ?? "earliest", limit: PAGE, shown_bytes: SHOWN_BYTES, ...passwordOf(`${namespace}/${name}`) }, signal),
  render(data, { parts: [namespace, name], query }, act) {
    const above = streamTabs(namespace, name, "records");
    if (data.locked) return h("div", null, above, passwordForm(`${namespace}/${name}`, data, act));
    const newest = parsed(query.get("from") ?? "")[0] === "last" || query.get("order") === "newest";
    const at = (from) => address("stream", [namespace, name, "records"], { from });
    const beside = (from) => address("stream", [namespace, name, "records"], { from, ...(newest ? { order: "newest" } : {}) });
    const first = data.items.find((one) => one.kind === "record");
    const before = first?.sequence ? beside(`seq:${Math.max(0, Number(first.sequence) - PAGE)}`) : null;
    const pages = (label) => pager(label, [["Oldest", at("earliest")], ["Older", before], ["Newer", (data.next ?? (data.items.length ? data.end : null)) && beside(data.next ?? data.end)], ["Newest", at(`last:${PAGE}`)]]);
    return h("div", null, above, pages("Pages of records, above"),
      data.items.length ? recordLines(data.items, newest) : empty("There are no records here", NO_RECORDS),
      data.stopped ? h("p", { class: "alert warn" }, `! ${STOPPED[data.stopped]}`) : "", data.items.length ? pages("Pages of records") : "");
  },
};
