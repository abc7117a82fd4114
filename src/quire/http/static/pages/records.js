// The records of a stream, from any place on.

import { empty } from "/ui/parts/controls.js";
import { address, h } from "/ui/parts/dom.js";
import { count, time } from "/ui/parts/format.js";
import { pageTabs, pager, selection } from "/ui/parts/lists.js";
import { askFor, failure, inline, passwordForm, passwordOf, payloadItem, shownAs, visible } from "/ui/parts/payload.js";

const PAGE = 20;
const SHOWN_BYTES = 4096;
const PLACES = [["earliest", "the oldest record"], ["last", "the newest records"], ["time", "a time"], ["position", "a position"],
  ["seq", "a sequence number"], ["txid", "a transaction id"]];
const HINTS = { position: "segment:entry:slot, such as 5:12:3", seq: "a number", txid: "a number" };
const STOPPED = {
  bytes: "This page ends early, because an answer is limited to 1 MiB of payloads and 16 MiB read from bookies.",
  time: "This page ends early, because the bookies took longer than 10 s.",
};

/** Return what is above a stream's pages. */
export const streamCrumbs = ({ parts: [namespace] }) => [["Namespaces", address("streams")], [`Streams of ${namespace}`, address("streams", [namespace])]];

export const streamTabs = (namespace, name, here) => pageTabs(`Stream ${name}`, [
  ["Segments and lag", address("stream", [namespace, name]), here === "segments"], ["Records", address("stream", [namespace, name, "records"]), here === "records"]]);

/** Return the kind and the value of a place, such as "seq:7". */
function parsed(place) {
  const [kind] = place.split(":", 1);
  if (place === "earliest" || kind === "last") return [kind, ""];
  if (["time", "seq", "txid"].includes(kind)) return [kind, place.slice(kind.length + 1)];
  return ["position", place];
}

/** Return a time as the field for a local date and time has it. */
function local(iso) {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return "";
  return new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

function controls({ parts: [namespace, name], query }) {
  const [kind, value] = parsed(query.get("from") ?? "earliest");
  const place = selection("records-place", "Begin at", PLACES, kind);
  const input = h("input", { id: "records-value", autocomplete: "off", maxlength: 100 });
  const label = h("label", { for: "records-value" });
  const field = h("div", null, label, input);
  const change = () => {
    const chosen = place.value;
    const shown = chosen !== "earliest" && chosen !== "last";
    field.hidden = !shown;
    input.required = shown;
    input.type = chosen === "time" ? "datetime-local" : "text";
    if (chosen === "time") input.step = "1";
    input.placeholder = HINTS[chosen] ?? "";
    label.textContent = PLACES.find(([one]) => one === chosen)[1].replace(/^an? /, "").replace(/^./, (first) => first.toUpperCase());
    input.value = chosen === kind ? (kind === "time" ? local(value) : value) : "";
  };
  place.field.querySelector("select").addEventListener("change", change);
  change();
  const submit = (event) => {
    event.preventDefault();
    const typed = input.value.trim();
    const from = { earliest: () => "earliest", last: () => `last:${PAGE}`, time: () => `time:${new Date(typed).toISOString()}`, position: () => typed }[place.value]?.() ?? `${place.value}:${typed}`;
    location.hash = address("stream", [namespace, name, "records"], { from });
  };
  return h("form", { role: "search", onsubmit: submit }, place.field, field, h("button", null, "Show"));
}

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

function item(one) {
  if (one.kind === "gap") return h("li", { class: "card item" }, h("div", { class: one.why === "lost" ? "alert bad" : "alert warn" },
    h("p", null, `${one.why === "lost" ? "✗" : "!"} Records from ${one.position} to just before ${one.behind} ${GAPS[one.why] ?? one.why}.`)));
  const title = h("h3", { class: "mono" }, one.position);
  if (one.kind === "unreadable") return h("li", { class: "card item" }, title, failure(one.error));
  const known = [one.sequence === null ? "" : `sequence ${count(one.sequence)}`, one.time ? time(Date.parse(one.time)) : `txid ${one.txid}`];
  return payloadItem(title, known.filter(Boolean), one, `record ${one.position}`, envelope(one));
}

export const records = {
  title: ({ parts }) => `Records of stream ${parts[1]}`,
  crumbs: streamCrumbs,
  interval: null,
  controls,
  load: ({ parts: [namespace, name], query }, signal) => askFor("/api/v1/quire/stream/records", {
    namespace, name, from: query.get("from") ?? "earliest", limit: PAGE, shown_bytes: SHOWN_BYTES, ...passwordOf(`${namespace}/${name}`) }, signal),
  render(data, { parts: [namespace, name] }, act) {
    const above = streamTabs(namespace, name, "records");
    if (data.locked) return h("div", null, above, passwordForm(`${namespace}/${name}`, data, act));
    const at = (from) => address("stream", [namespace, name, "records"], { from });
    const first = data.items.find((one) => one.kind === "record");
    const before = first?.sequence ? at(`seq:${Math.max(0, Number(first.sequence) - PAGE)}`) : null;
    const pages = (label) => pager(label, [["Oldest", at("earliest")], ["Older", before], ["Newer", (data.next ?? (data.items.length ? data.end : null)) && at(data.next ?? data.end)], ["Newest", at(`last:${PAGE}`)]]);
    return h("div", null, above, pages("Pages of records, above"),
      data.items.length ? shownAs(() => h("ol", { class: "items" }, data.items.map(item)))
        : empty("There are no records here", "This is the end of what bookies know to be acknowledged. A record that was appended a moment ago may follow."),
      data.stopped ? h("p", { class: "alert warn" }, `! ${STOPPED[data.stopped]}`) : "", data.items.length ? pages("Pages of records") : "");
  },
};
