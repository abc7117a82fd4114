import { get } from "/ui/api.js";
import { address, facts, h, link, mark, scrolling, section, table } from "/ui/dom.js";
import { bytes, count, counted, seconds } from "/ui/format.js";

const PAGE = 50;
const SEGMENTS_DRAWN_MAX = 100;
const ID = /^[0-9]{1,19}$/;

export function idForm(label, page, value = "") {
  const input = h("input", { id: "ledger-id", inputmode: "numeric", autocomplete: "off", required: true, pattern: "[0-9]{1,19}", value });
  const submit = (event) => {
    event.preventDefault();
    location.hash = address(page, [input.value.trim()]);
  };
  return h("form", { role: "search", onsubmit: submit },
    h("div", null, h("label", { for: "ledger-id" }, label), input), h("button", null, "Show"));
}

const STATES = { OPEN: "note", IN_RECOVERY: "warn", CLOSED: "good" };

export const ledgers = {
  title: () => "Ledgers",
  interval: 10000,
  controls: () => idForm("Ledger id", "ledger"),
  load: ({ query }, signal) => get("/api/v1/quire/ledgers", {
    limit: PAGE, ...(ID.test(query.get("after") ?? "") ? { after: query.get("after") } : {}),
  }, signal),
  render(data, { query }) {
    const first = !query.has("after");
    const rows = data.ledgers.map((one) => [
      link(`${one.ledger_id}`, "ledger", [one.ledger_id]), mark(STATES[one.state] ?? "note", one.state.toLowerCase().replace("_", " ")),
      count(one.last_entry_id === null ? null : one.last_entry_id + 1), bytes(one.length),
      `${one.ensemble} / ${one.write_quorum} / ${one.ack_quorum}`, count(one.segments.length), one.ctime ?? "–",
    ]);
    const columns = [["Ledger", ""], ["State", ""], ["Entries", "number"], ["Bytes", "number"],
      ["Ensemble / write / ack", ""], ["Fragments", "number"], ["Created", ""]];
    return h("div", null,
      rows.length ? table("Ledgers, ascending", columns, rows) : h("p", null, first ? "There are no ledgers yet." : "There are no more ledgers."),
      h("nav", { class: "pager", "aria-label": "Pages of ledgers" },
        first ? "" : link("First page", "ledgers"),
        data.next === null ? "" : link("Next page", "ledgers", [], { after: data.next })));
  },
};

const REPLICA = {
  present: ["good", "✓ present"], empty: ["note", "– no entries to store"], short: ["warn", "! lacks the last entries"],
  missing: ["bad", "✗ missing"], different: ["bad", "✗ different"], damaged: ["bad", "✗ damaged"],
  unreachable: ["bad", "✗ does not answer"],
};

function replica(one) {
  const [kind, words] = REPLICA[one.state] ?? ["warn", one.state];
  return h("td", { class: kind }, h("strong", null, one.bookie), h("small", null, words),
    h("small", null, `${counted(one.entries, "entry")}${one.registered === "writable" ? "" : `, bookie ${one.registered}`}`));
}

/** Draw the ensemble over time: a column for each fragment, a row for each place in the ensemble. */
function drawing(data) {
  const drawn = data.segments.slice(-SEGMENTS_DRAWN_MAX);
  const head = drawn.map((one) => h("th", { scope: "col" },
    one.last < one.first ? `from entry ${one.first} on`
      : `${one.first === one.last ? `entry ${one.first}` : `entries ${one.first} to ${one.last}`}${one.closed ? "" : " …"}`,
    h("small", null, `${one.copies_min} of ${counted(data.quorums[1], "copy")} good`)));
  const places = Math.max(0, ...drawn.map((one) => one.replicas.length));
  const rows = Array.from({ length: places }, (_, at) => h("tr", null, h("th", { scope: "row" }, `Place ${at + 1}`),
    drawn.map((one) => one.replicas[at] ? replica(one.replicas[at]) : h("td", null, ""))));
  const caption = `The ensemble over time, from left to right${drawn.length < data.segments.length ? ` (the last ${drawn.length} of ${data.segments.length} fragments)` : ""}`;
  return scrolling("Ensemble over time", h("table", { class: "drawing" }, h("caption", null, caption),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Place"), head)), h("tbody", null, rows)));
}

function findings(data) {
  const bad = data.segments.flatMap((segment) => segment.replicas.flatMap((one) => one.bad.map((part) => [one.bookie, ...part])));
  if (!bad.length) return "";
  const rows = bad.slice(0, 200).map(([bookie, first, last, kind, detail]) => [bookie, first === last ? `${first}` : `${first} to ${last}`, kind, detail]);
  return section("What was found", table(`Findings${bad.length > rows.length ? `, the first ${rows.length} of ${bad.length}` : ""}`,
    [["Bookie", ""], ["Entries", ""], ["Problem", ""], ["Detail", ""]], rows));
}

export function explanation(data) {
  const { verdict } = data;
  const well = !verdict.command && data.segments.every((one) => one.copies_min >= data.quorums[1]);
  return h("div", { class: `alert ${well ? "good" : "bad"}` }, h("p", null, `${well ? "✓" : "✗"} ${verdict.sentence}`),
    verdict.command ? h("p", null, "What to do: ", h("code", null, verdict.command)) : "");
}

export const ledger = {
  title: ({ parts }) => `Ledger ${parts[0]}`,
  interval: 5000,
  load: ({ parts }, signal) => get(`/api/v1/quire/ledgers/${encodeURIComponent(parts[0] ?? "")}/explain`, {}, signal),
  render(data) {
    const { metadata } = data;
    const custom = Object.entries(metadata.custom);
    return h("div", null, explanation(data),
      section("Replicas", drawing(data)), findings(data),
      section("Details", facts([
        ["State", data.state.toLowerCase().replace("_", " ")],
        ["Last entry", data.last_entry < 0 ? "none yet" : `${data.last_entry}`],
        ["Bytes", bytes(metadata.length)],
        ["Ensemble / write / ack", data.quorums.join(" / ")],
        ["Digest", metadata.digest ?? "–"],
        ["Created", h("small", null, metadata.ctime ?? "–")],
        ["Marked for repair", data.mark === null ? "no" : data.mark.age_s === null ? "yes" : `yes, mark last changed ${seconds(data.mark.age_s)} ago`],
        ["Being repaired by", data.lock_owner ?? "nobody"],
        ["Bookies that could replace a member", count(data.spare)],
      ])),
      custom.length ? section("Custom metadata", table("Keys and values", [["Key", ""], ["Value", ""]], custom)) : "");
  },
};
