import { get } from "/ui/parts/api.js";
import { LEDGER, command, empty } from "/ui/parts/controls.js";
import { address, coded, facts, h, link, mark, scrolling, section, sortable, sorts, table } from "/ui/parts/dom.js";
import { entries, entry, ledgerTabs } from "/ui/pages/entries.js";
import { bytes, count, counted, seconds, time } from "/ui/parts/format.js";
import { pager, selection, textField } from "/ui/parts/lists.js";

const PAGE = 50;
const SEGMENTS_DRAWN_MAX = 100;
const ID = /^[0-9]{1,19}$/;

export function idForm(label, page, action = "Open") {
  const input = h("input", { id: "ledger-id", inputmode: "numeric", autocomplete: "off", required: true, pattern: "[0-9]{1,19}" });
  const submit = (event) => {
    event.preventDefault();
    location.hash = address(page, [input.value.trim()]);
  };
  return h("form", { role: "search", class: "one-field", onsubmit: submit },
    h("div", null, h("label", { for: "ledger-id" }, label), input), h("button", null, action));
}

const STATE_CHOICES = [["", "any"], ["OPEN", "open"], ["IN_RECOVERY", "in recovery"], ["CLOSED", "closed"]];
const OWNER_CHOICES = [["", "any"], ["stream", "stream"], ["object", "object"], ["dataset", "dataset"], ["state machine", "state machine"],
  ["other", "another application"], ["none", "none"], ["unknown", "not known"]];
const REPLICATION_CHOICES = [["any", "any"], ["complete", "complete"], ["lacking", "bookie gone"], ["marked", "marked for repair"], ["repairing", "being repaired"]];
const ORDER_CHOICES = [["newest", "newest first"], ["oldest", "oldest first"]];
const REPLICATION = { complete: ["good", "✓ complete"], lacking: ["bad", "✗ bookie gone"], marked: ["warn", "! marked for repair"], repairing: ["warn", "! being repaired"] };
const FILTERS = ["state", "owner", "owner_name", "replication", "first", "last"];
/** A filtered page may need several requests, because each looks at ledgers for 150 ms only. */
const REQUESTS_MAX = 10;

const filters = (query) => Object.fromEntries(FILTERS.filter((name) => query.get(name)).map((name) => [name, query.get(name)]));

/** Return the owners of a ledger, with a link to the page of each that has one. */
export function ownerLinks(owners) {
  if (owners === null || owners === undefined) return h("span", { class: "quiet" }, "not known yet");
  if (!owners.length) return h("span", { class: "quiet" }, "none");
  return owners.map((one, at) => [at ? ", " : "", one.doubt ? "perhaps " : "", ownerLink(one)]);
}

function ownerLink({ kind, name, place }) {
  if (kind === "unknown") return "an unknown owner";
  const text = `${kind} ${name}`;
  if (kind === "stream") return [link(text, "stream", [place, name]), h("small", { class: "quiet" }, ` in ${place}`)];
  if (kind === "object") return [link(text, "object", [place, name]), h("small", { class: "quiet" }, ` in ${place}`)];
  if (kind === "dataset") return link(text, "dataset", [name]);
  // As a namespace, with a slash at the beginning: the name is the path of the stream of its commands.
  if (kind === "state machine") return link(`${kind} /${name}`, "machine", [name]);
  return text;
}

function filterForm({ query }) {
  const state = selection("ledger-state", "State", STATE_CHOICES, query.get("state") ?? "");
  const owner = selection("ledger-owner", "Owner", OWNER_CHOICES, query.get("owner") ?? "");
  const name = textField("ledger-owner-name", "Part of the owner's name", query.get("owner_name"), { type: "search" });
  const replication = selection("ledger-replication", "Replicas", REPLICATION_CHOICES, query.get("replication") ?? "any");
  const digits = { inputmode: "numeric", pattern: "[0-9]{1,19}", class: "short" };
  const first = textField("ledger-first", "From id", query.get("first"), digits);
  const last = textField("ledger-last", "To id", query.get("last"), digits);
  const order = selection("ledger-order", "Order", ORDER_CHOICES, query.get("order") ?? "newest");
  const submit = (event) => {
    event.preventDefault();
    const given = { state: state.value, owner: owner.value, owner_name: name.value, first: first.value, last: last.value,
      replication: replication.value === "any" ? "" : replication.value, order: order.value === "newest" ? "" : order.value };
    location.hash = address("ledgers", [], Object.fromEntries(Object.entries(given).filter(([, value]) => value)));
  };
  const used = Object.keys(filters(query)).length + (query.get("order") === "oldest" ? 1 : 0);
  return h("details", { class: "filters", open: used > 0 }, h("summary", null, used ? `Filters (${used})` : "Filters"),
    h("form", { role: "search", "aria-label": "Filters", onsubmit: submit }, order.field, state.field, owner.field, name.field, replication.field, first.field, last.field,
      h("button", { class: "primary" }, "Apply"), used ? h("a", { href: address("ledgers") }, "Remove all") : ""));
}

const COLUMNS = [
  { text: "Ledger", by: (one) => BigInt(one.ledger_id) }, { text: "State", by: (one) => one.state }, { text: "Owner", by: (one) => ownerText(one) },
  { text: "Replicas", by: (one) => one.replication?.state }, { text: "Entries", type: "number", by: (one) => one.last_entry_id },
  { text: "Size", type: "number", by: (one) => one.length }, { text: "Ens. / write / ack" },
  { text: "Created", type: "when", by: (one) => one.ctime }];

const ownerText = (one) => one.owners?.map((owner) => `${owner.kind} ${owner.place} ${owner.name}`).join() || null;

function ledgerRow(one) {
  const name = link(`${one.ledger_id}`, "ledger", [one.ledger_id]);
  if (one.error) return [name, mark("bad", "✗ metadata unreadable"), one.error, "–", "–", "–", "–", "–"];
  const { state, gone } = one.replication;
  return [name, mark(...(LEDGER[one.state] ?? ["note", one.state])), h("div", { class: "owner" }, ownerLinks(one.owners)),
    [mark(...REPLICATION[state]), gone.length ? h("small", { class: "quiet" }, ` ${gone.slice(0, 3).join(", ")}${gone.length > 3 ? " …" : ""}`) : ""],
    count(one.last_entry_id === null ? null : one.last_entry_id + 1), bytes(one.length),
    `${one.ensemble} / ${one.write_quorum} / ${one.ack_quorum}`, time(one.ctime_ms)];
}

async function page(query, signal) {
  const found = [];
  let [after, looked] = [query.get("after"), 0];
  for (let requests = 0; requests < REQUESTS_MAX; requests += 1) {
    const some = await get("/api/v1/quire/ledgers", { limit: PAGE - found.length, order: query.get("order") === "oldest" ? "oldest" : "newest",
      replication: "any", ...filters(query), ...(ID.test(after ?? "") ? { after } : {}) }, signal);
    found.push(...some.ledgers);
    [after, looked] = [some.next, looked + some.looked_at];
    if (after === null || found.length >= PAGE || !Object.keys(filters(query)).length) break;
    after = `${after}`;
  }
  return { ledgers: found, next: after, looked };
}

export const ledgers = {
  title: () => "Ledgers",
  interval: 10000,
  controls: (where) => [idForm("Ledger id", "ledger"), filterForm(where)],
  load: ({ query }, signal) => page(query, signal),
  render(data, { query }) {
    const order = query.get("order") === "oldest" ? "oldest" : "newest";
    const kept = { ...(order === "oldest" ? { order } : {}), ...filters(query) };
    const filtered = Object.keys(filters(query)).length > 0;
    const full = data.ledgers.length >= PAGE;
    return h("div", null,
      data.ledgers.length ? h("div", { class: "ledgers" }, sortable("ledgers", sorts(`${order === "newest" ? "Newest" : "Oldest"} first, ${counted(data.ledgers.length, "ledger")} on this page.`),
        COLUMNS, data.ledgers, ledgerRow, null))
        : empty(filtered ? "No ledgers match the filters" : query.has("after") ? "There are no more ledgers" : "There are no ledgers yet", filtered && data.next !== null ? "Not all ledgers have been searched yet." : ""),
      filtered ? h("p", { class: "quiet" }, `${counted(data.looked, "ledger")} searched${data.next === null ? ", which is all of them" : full ? "" : `, as far as ledger ${data.next}`}.`) : "",
      pager("Pages of ledgers", [[order === "newest" ? "Newest" : "Oldest", query.has("after") && address("ledgers", [], kept)],
        [full || !filtered ? (order === "newest" ? "Older" : "Newer") : "Search further", data.next !== null && address("ledgers", [], { ...kept, after: data.next })]]));
  },
};

const REPLICA = {
  present: ["good", "✓ present"], empty: ["note", "– no entries expected"], short: ["warn", "! lacks the last entries"],
  missing: ["bad", "✗ missing"], different: ["bad", "✗ different"], damaged: ["bad", "✗ damaged"],
  unreachable: ["bad", "✗ does not answer"],
};

function replica(one) {
  const [kind, words] = REPLICA[one.state] ?? ["warn", one.state];
  return h("td", { class: kind }, h("strong", null, link(one.bookie, "bookie", [one.bookie])), h("small", { class: "state" }, words),
    h("small", null, `${counted(one.entries, "entry")}${one.registered === "writable" ? "" : `, bookie ${one.registered}`}`));
}

/** Draw the ensemble over time: a column for each segment, a row for each position in the ensemble. */
function drawing(data) {
  const drawn = data.segments.slice(-SEGMENTS_DRAWN_MAX);
  const head = drawn.map((one) => h("th", { scope: "col" },
    one.last < one.first ? `from entry ${one.first} on`
      : `${one.first === one.last ? `entry ${one.first}` : `entries ${one.first} to ${one.last}`}${one.closed ? "" : " …"}`,
    h("small", null, one.last < one.first ? one.closed ? "no entries" : "no acknowledged entries known" : `${one.copies_min} of ${counted(data.quorums[1], "copy")} good`)));
  const positions = Math.max(0, ...drawn.map((one) => one.replicas.length));
  const rows = Array.from({ length: positions }, (_, at) => h("tr", null, h("th", { scope: "row" }, `Position ${at + 1}`),
    drawn.map((one) => one.replicas[at] ? replica(one.replicas[at]) : h("td", null, ""))));
  const caption = `The ensemble over time, from left to right${drawn.length < data.segments.length ? ` (the last ${drawn.length} of ${data.segments.length} segments)` : ""}`;
  return scrolling("Ensemble over time", h("table", { class: "drawing" }, h("caption", null, caption),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Position"), head)), h("tbody", null, rows)));
}

function findings(data) {
  const bad = data.segments.flatMap((segment) => segment.replicas.flatMap((one) => one.bad.map((part) => [one.bookie, ...part])));
  if (!bad.length) return "";
  const rows = bad.slice(0, 200).map(([bookie, first, last, kind, detail]) => [bookie, first === last ? `${first}` : `${first} to ${last}`, REPLICA[kind]?.[1].slice(2) ?? kind, detail]);
  return section("What was found", table(`Findings${bad.length > rows.length ? `, the first ${rows.length} of ${bad.length}` : ""}`,
    [["Bookie", ""], ["Entries", ""], ["Problem", ""], ["Detail", ""]], rows));
}

export function explanation(data) {
  const { verdict } = data;
  const [, first, rest] = /^(.*?\.)((?: [A-Z\d].*)?)$/s.exec(`${verdict.sentence}.`);
  const well = !verdict.command && data.segments.every((one) => one.copies_min >= data.quorums[1]);
  return h("div", { class: `alert ${well ? "good" : "bad"}` }, h("p", null, `${well ? "✓" : "✗"} `, coded(first), h("span", { class: "rest" }, coded(rest))),
    verdict.command ? [h("p", null, "What to do:"), command(verdict.command)] : "");
}

export const ledger = {
  at: (parts) => (parts[1] === "entries" ? (parts.length > 2 ? entry : entries) : ledger),
  title: ({ parts }) => `Ledger ${parts[0]}`,
  crumbs: () => [["Ledgers", address("ledgers")]],
  interval: 5000,
  load: ({ parts }, signal) => get(`/api/v1/quire/ledgers/${encodeURIComponent(parts[0] ?? "")}/explain`, {}, signal),
  render(data) {
    const { metadata } = data;
    const custom = Object.entries(metadata.custom);
    return h("div", null, ledgerTabs(data.ledger, "replicas"), explanation(data),
      section("Replicas", drawing(data)), findings(data),
      section("Details", facts([
        ["State", data.state.toLowerCase().replace("_", " ")],
        ["Owner", ownerLinks(metadata.owners)],
        data.state === "CLOSED" ? ["Last entry", data.last_entry < 0 ? "none" : `${data.last_entry}`] : ["Acknowledged up to", data.last_entry < 0 ? "no entry known yet" : `entry ${data.last_entry}, or further`],
        ["Size", bytes(metadata.length)],
        ["Ensemble / write / ack", data.quorums.join(" / ")],
        ["Digest", metadata.digest ?? "–"],
        ["Created", time(metadata.ctime_ms)],
        ["Marked for repair", data.mark === null ? "no" : data.mark.age_s === null ? "yes" : `yes, mark last changed ${seconds(data.mark.age_s)} ago`],
        ["Being repaired by", data.lock_owner ?? "nobody"],
        ["Bookies that could replace a lost one", count(data.spare)],
      ])),
      custom.length ? section("Custom metadata", table("Keys and values", [["Key", ""], ["Value", ""]], custom)) : "");
  },
};
