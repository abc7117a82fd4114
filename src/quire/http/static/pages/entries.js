// The entries of a ledger, and the copies of one entry.

import { empty } from "/ui/parts/controls.js";
import { address, h, link, mark, section, table } from "/ui/parts/dom.js";
import { bytes, count, counted } from "/ui/parts/format.js";
import { pageTabs, pager, selection } from "/ui/parts/lists.js";
import { askFor, failure, lines, passwordForm, passwordOf, payload, shownAs } from "/ui/parts/payload.js";

const PAGE = 20;
const SIZES = [["1024", "1 kB of each"], ["4096", "4 kB of each"], ["65536", "64 kB of each"]];
const PAGES = [["20", "20 on a page"], ["50", "50 on a page"], ["100", "100 on a page"]];
const ID = /^[0-9]{1,10}$/;
const STOPPED = {
  bytes: "This page ends early, because an answer is limited to 1 MiB of payloads and 16 MiB read from bookies.",
  time: "This page ends early, because the bookies took longer than 10 s.",
};

export const ledgerTabs = (ledger, here) => pageTabs(`Ledger ${ledger}`, [
  ["Replicas", address("ledger", [ledger]), here === "replicas"], ["Entries", address("ledger", [ledger, "entries"]), here === "entries"]]);

const limitOf = (query) => Number(PAGES.find(([value]) => value === query.get("limit"))?.[0] ?? PAGE);
const sizeOf = (query) => SIZES.find(([value]) => value === query.get("bytes"))?.[0] ?? "4096";

/** Return what stays the same from page to page. */
const kept = (query) => Object.fromEntries(["limit", "bytes"].filter((name) => query.has(name)).map((name) => [name, query.get(name)]));

function controls({ parts: [ledger], query }) {
  const input = h("input", { id: "first-entry", inputmode: "numeric", autocomplete: "off", pattern: "[0-9]{1,10}", class: "short", value: query.get("first") ?? "" });
  const limit = selection("entries-limit", "Entries", PAGES, String(limitOf(query)));
  const size = selection("entries-bytes", "Bytes", SIZES, sizeOf(query));
  const submit = (event) => {
    event.preventDefault();
    const first = input.value.trim();
    location.hash = address("ledger", [ledger, "entries"], { ...(first ? { first } : {}), limit: limit.value, bytes: size.value });
  };
  return h("form", { class: "entry-choice", role: "search", onsubmit: submit }, h("div", null, h("label", { for: "first-entry" }, "From entry"), input),
    limit.field, size.field, h("button", null, "Show"));
}

const CLOSED = { OPEN: "is open: the entries that are known to be acknowledged are shown", IN_RECOVERY: "is being recovered: the entries that are known to be acknowledged are shown", CLOSED: "is closed" };

export const entries = {
  title: ({ parts }) => `Entries of ledger ${parts[0]}`,
  crumbs: ({ parts: [ledger] }) => [["Ledgers", address("ledgers")], [`Ledger ${ledger}`, address("ledger", [ledger])]],
  interval: null,
  controls,
  load: ({ parts: [ledger], query }, signal) => askFor(`/api/v1/quire/ledgers/${encodeURIComponent(ledger)}/entries`, {
    limit: limitOf(query), shown_bytes: Number(sizeOf(query)), ...passwordOf(ledger),
    ...(ID.test(query.get("first") ?? "") ? { first: Number(query.get("first")) } : {}), ...(query.get("end") ? { from_end: true } : {}),
  }, signal),
  render(data, { parts: [ledger], query }, act) {
    if (data.locked) return h("div", null, ledgerTabs(ledger, "entries"), passwordForm(ledger, data, act));
    const found = data.entries;
    const [first, limit] = [found.length ? found[0].entry_id : Number(query.get("first") ?? 0), limitOf(query)];
    const at = (values) => address("ledger", [ledger, "entries"], { ...kept(query), ...values });
    const pages = (label) => pager(label, [
      ["First", first > 0 && at({})], ["Previous", first > 0 && at({ first: Math.max(0, Math.min(first, data.last_entry_id + 1) - limit) })],
      ["Next", data.next !== null && at({ first: data.next })], ["Last", data.next !== null && at({ end: 1 })]]);
    const copies = (one) => link(`Entry ${one.entry_id} and its copies`, "ledger", [ledger, "entries", one.entry_id]);
    const items = () => found.map((one) => (one.error ? { element: [h("h3", null, copies(one)), failure(one.error)] }
      : { id: one.entry_id, name: `entry ${one.entry_id}`, one, cells: [`${one.entry_id}`, bytes(one.bytes)], more: (kind) => h("p", { class: "quiet" }, kind, " · ", copies(one)) }));
    const columns = [["entry", "Entry"], ["size", "Size"], ["value", "Payload"]];
    return h("div", null, ledgerTabs(ledger, "entries"),
      h("p", { class: "quiet" }, `The ledger ${CLOSED[data.state] ?? ""}. ${data.last_entry_id < 0 ? "It has no entries that can be shown." : `The last one is entry ${count(data.last_entry_id)}.`}`),
      found.length ? [pages("Pages of entries, above"), lines(`Entries of ledger ${ledger}`, columns, items())] : empty("There are no entries here", data.last_entry_id < 0 ? "Entries appear once they are acknowledged." : `The last entry is ${data.last_entry_id}.`),
      data.stopped ? h("p", { class: "alert warn" }, `! ${STOPPED[data.stopped]}`) : "", pages("Pages of entries"));
  },
};

const COPY = { good: ["good", "✓ good"], missing: ["bad", "✗ missing"], damaged: ["bad", "✗ damaged"], different: ["bad", "✗ different"], unreachable: ["bad", "✗ does not answer"] };
const PART = 65536;

export const entry = {
  title: ({ parts }) => `Entry ${parts[2]} of ledger ${parts[0]}`,
  crumbs: ({ parts: [ledger, , id] }) => [["Ledgers", address("ledgers")], [`Ledger ${ledger}`, address("ledger", [ledger])], [`Entries from ${id} on`, address("ledger", [ledger, "entries"], { first: id })]],
  interval: null,
  load: ({ parts: [ledger, , id], query }, signal) => askFor(`/api/v1/quire/ledgers/${encodeURIComponent(ledger)}/entries/${encodeURIComponent(id)}`, {
    shown_bytes: PART, ...passwordOf(ledger), ...(query.get("bookie") ? { bookie: query.get("bookie") } : {}),
    ...(ID.test(query.get("offset") ?? "") ? { offset: Number(query.get("offset")) } : {}),
  }, signal),
  render(data, { parts: [ledger, , id], query }, act) {
    if (data.locked) return h("div", null, ledgerTabs(ledger, "entries"), passwordForm(ledger, data, act));
    const good = data.copies.filter((one) => one.state === "good").length;
    const at = (values) => address("ledger", [ledger, "entries", id], { ...(query.get("bookie") ? { bookie: query.get("bookie") } : {}), ...values });
    const rows = data.copies.map((one) => [link(one.bookie, "bookie", [one.bookie]), mark(...(COPY[one.state] ?? ["warn", one.state])), one.registered, bytes(one.bytes), one.detail || "–",
      one.bytes === null ? "" : one.bookie === data.from ? "shown below" : h("a", { href: address("ledger", [ledger, "entries", id], { bookie: one.bookie }) }, "Show this copy")]);
    const whole = good >= data.write_quorum;
    const behind = data.payload === undefined ? 0 : data.offset + data.shown_bytes;
    return h("div", null, ledgerTabs(ledger, "entries"),
      h("div", { class: `alert ${whole ? "good" : "bad"}` }, h("p", null, whole ? `✓ All ${counted(data.write_quorum, "copy")} are good`
        : `✗ ${good} of ${counted(data.write_quorum, "copy")} ${good === 1 ? "is" : "are"} good`),
      whole ? "" : h("p", null, "What to do: ", link(`see ledger ${ledger}`, "ledger", [ledger]))),
      section("Copies", table("What each bookie has of this entry", [["Bookie", ""], ["Copy", ""], ["Bookie is", ""], ["Size", "number"], ["What is wrong", ""], ["", ""]], rows)),
      section("Payload", data.payload === undefined ? h("p", null, "No bookie sent a good copy. To see what is left, show the copy of one bookie.") : [
        h("p", { class: data.verified ? "quiet" : "alert warn" }, data.verified ? `The copy of ${data.from}; its digest is right.` : `! The copy of ${data.from} is not good: these bytes may not be those that were written.`),
        shownAs(() => {
          const [kind, element] = payload(data, `entry ${id}`);
          return [h("p", { class: "quiet" }, kind), element];
        }),
        pager("Parts of the payload", [["First part", data.offset > 0 && at({})], ["Previous part", data.offset > 0 && at({ offset: Math.max(0, data.offset - PART) })],
          ["Next part", behind < data.bytes && at({ offset: behind })]])]));
  },
};
