// One bookie: what is wrong with it, its disks, its ledgers, the jobs that touch it, and what can be
// done with it.

import { QUESTIONS, button } from "/ui/parts/actions.js";
import { ask, get } from "/ui/parts/api.js";
import { stateMarks } from "/ui/pages/bookies.js";
import { advice, command, commandWith, empty, LEDGER, stateKind, tiles, usage } from "/ui/parts/controls.js";
import { accessNote } from "/ui/parts/dialogs.js";
import { address, facts, h, link, mark, section, table } from "/ui/parts/dom.js";
import { bytes, count, counted, localSizes, milliseconds, percent, rate, seconds, time } from "/ui/parts/format.js";
import { elsewhereTable, jobTable, pausedTable } from "/ui/parts/jobs.js";
import { problemList } from "/ui/pages/overview.js";
import { loadSeries, OF_BOOKIE, seriesSection } from "/ui/parts/series.js";

const PAGE = 25;
const ID = /^[0-9]{1,19}$/;
const path = (id) => `/api/v1/quire/bookies/${encodeURIComponent(id)}`;

const next = (text) => (text ? advice(text) : "");

// -- key figures --------------------------------------------------------------------------------

/** Return the key figures. Of a bookie that is gone, only two are known. */
function figures({ bookie, report }, ledgers) {
  const { rates } = bookie;
  const used = bookie.free_bytes === null || !bookie.total_bytes ? null : 1 - bookie.free_bytes / bookie.total_bytes;
  return tiles([
    { name: "State", value: bookie.state, below: report ? `version ${report.version}, up ${seconds(((report.now_ms ?? Date.now()) - report.started_ms) / 1000)}` : "", kind: stateKind(bookie) },
    ...(bookie.state === "gone" ? [] : [{ name: "Disk used", value: percent(used), below: used === null ? "not known" : `${bytes(bookie.free_bytes)} free of ${bytes(bookie.total_bytes)}`, kind: bookie.fullness }]),
    { name: "Ledgers that use it", value: (ledgers.whole ? "" : "at least ") + count(ledgers.count), below: ledgers.age_s === null ? "not counted yet" : `of ${counted(ledgers.read, "ledger")}` },
    ...(bookie.state === "gone" ? [] : [
      { name: "Entries added", value: rate(rates?.adds_per_s), below: rate(rates?.add_bytes_per_s, "B") },
      { name: "Read requests", value: rate(rates?.reads_per_s), below: rate(rates?.read_bytes_per_s, "B") },
      { name: "Add latency, p99", value: milliseconds(rates?.add_p99_ms), below: `p50 ${milliseconds(rates?.add_p50_ms)}` },
      { name: "Disk sync latency, p99", value: milliseconds(rates?.sync_p99_ms), below: `p50 ${milliseconds(rates?.sync_p50_ms)}` },
    ]),
  ]);
}

// -- disks --------------------------------------------------------------------------------------

const DIRECTORY = { writable: ["good", "✓ writable"], "read-only": ["warn", "! read-only"], failed: ["bad", "✗ failed"], loading: ["note", "loading"] };
const SEGMENT = { current: "current: adds go to it", closed: "closed: it waits to be sealed", sealed: "sealed", retired: "retired: it is being removed", damaged: "damaged", prepared: "prepared: empty, for later entries" };
const SEGMENT_KIND = { damaged: "bad", closed: "warn", retired: "note", current: "accent" };

function directory(one) {
  const [files, live] = ["file_bytes", "live_bytes"].map((name) => one.segments.reduce((total, part) => total + part[name], 0));
  return h("section", { class: "card directory", "aria-label": `Directory ${one.path}` },
    h("header", null, h("h3", { class: "mono" }, one.path), mark(...(DIRECTORY[one.state] ?? ["note", one.state]))),
    one.reason ? h("p", { class: "wrong" }, `${one.state === "read-only" ? "When it became read-only: " : ""}${localSizes(one.reason)}.`) : "",
    one.total_bytes ? usage(`disk of ${one.path}`, one.total_bytes - one.free_bytes, one.total_bytes, one.fullness) : h("p", { class: "quiet" }, "Its file system does not answer."),
    one.ledgers === null ? "" : h("p", null, `${counted(one.ledgers, "ledger")}. The log files take ${bytes(files)}, with ${bytes(live)} of entries that are not deleted.`),
    one.segments.length ? table(`Segments of ${one.path}`, [["Segments", ""], ["Number", "number"], ["Files", "number"], ["Live", "number"]], one.segments.map((part) =>
      [SEGMENT_KIND[part.state] && part.state === "damaged" ? mark("bad", `✗ ${SEGMENT[part.state]}`) : part.state === "current" && one.state !== "writable" ? "current" : SEGMENT[part.state] ?? part.state, count(part.segments), bytes(part.file_bytes), bytes(part.live_bytes)])) : "");
}

function disks({ bookie, report, report_missing: missing }) {
  if (report) return section("Disks by directory", h("div", { class: "cards" }, report.directories.map(directory)));
  const known = Object.entries(bookie.free_shares ?? {});
  return section("Disks by directory",
    bookie.free_bytes === null || !bookie.total_bytes ? "" : h("div", { class: "card directory" }, h("p", null, "All directories together"), usage(`disks of ${bookie.id}`, bookie.total_bytes - bookie.free_bytes, bookie.total_bytes, bookie.fullness)),
    known.length ? table("From its metrics", [["Directory", ""], ["Used", "number"]], known.map(([where, free]) => [where, percent(1 - free)])) : "",
    h("div", { class: "alert note" }, h("p", null, `Directories, segments and the reason for read-only are not known. ${missing.what}.`), next(missing.next)));
}

function store({ store: found, garbage_collection: collection, compaction_suspended: suspended, connections, min_free_bytes: least }) {
  if (!found) return "";
  const off = [collection?.enabled === false ? "off in its configuration" : "", collection?.switched_off ? "off in the cluster" : "", collection?.went_back ? "refused: the metadata store went back in time" : ""].filter(Boolean);
  return section("Storage", facts([
    ["Ledgers stored", count(found.ledgers)], ["Log files", bytes(found.segment_bytes)], ["Live entries", bytes(found.live_bytes)],
    ["Segments that wait to be sealed", count(found.segments_to_seal)],
    ["Damaged segments", found.damaged_segments ? mark("bad", `✗ ${count(found.damaged_segments)}`) : "none"],
    ["Ledgers with lost entries", found.damaged_ledgers ? mark("bad", `✗ ${count(found.damaged_ledgers)}`) : "none"],
    ["Compactions since its start", `${count(found.compactions)}, ${bytes(found.compaction_freed_bytes)} freed`],
    ["Compaction", suspended.length ? mark("warn", `! ${suspended.join(" and ")} suspended`) : "on"],
    ["Garbage collection", off.length ? mark("warn", `! ${off.join("; ")}`) : "on"],
    ["Becomes read-only below", `${bytes(least)} free`], ["Connections", count(connections)],
    ["Last background error", found.last_error ? mark("warn long", `! ${found.last_error}`) : "none"],
  ]));
}

// -- clients ------------------------------------------------------------------------------------

/** Why a client avoids a bookie. */
const REASONS = { "wrong-answers": ["bad long", "✗ quarantine: wrong answers"], errors: ["warn", "! quarantine: many errors"], failed: ["warn", "! failed a request"], slow: ["warn", "! slow"] };
const WRONG = { "bad-digest": "damaged entry", "wrong-entry": "another entry", dropped: "acknowledged entry denied", missing: "no such entry", "stale-lac": "older end of a ledger" };
const CLIENTS_SHOWN_MAX = 50;

/** Return the programs that avoid the bookie or got wrong answers from it, this server first. */
function suspecting({ own, clients }) {
  const mine = { instance: "this server", job: "", ...own };
  return [mine, ...clients].filter((one) => one.reasons.length || Object.keys(one.wrong_answers).length);
}

/** Say which programs avoid the bookie. There is nothing to say if none is known to. */
function clientTable(known) {
  const found = known ? suspecting(known) : [];
  if (!found.length) return "";
  const rows = found.slice(0, CLIENTS_SHOWN_MAX).map((one) => [
    [h("span", { class: one.job ? "mono" : null }, one.instance), one.job ? h("small", { class: "quiet second" }, ` ${one.job}`) : ""],
    one.reasons.length ? one.reasons.map((name, at) => [at ? " " : "", mark(...(REASONS[name] ?? ["warn", `! ${name}`]))]) : "not now",
    Object.entries(one.wrong_answers).map(([kind, number]) => `${WRONG[kind] ?? kind}: ${count(number)}`).join(", ") || "none"]);
  return section("Programs that suspect it",
    table(`${counted(found.length, "program")}${found.length > rows.length ? `, the first ${rows.length} of them` : ""}`, [["Program", ""], ["Why it avoids the bookie", ""], ["Wrong answers since its start", ""]], rows),
    h("p", { class: "quiet" }, "They write to other bookies and ask others first, while others are left. If only programs on some machines find it slow or failing, look at the network between them. After wrong answers, the event ", h("code", null, "bookie_misbehaved"), " in the log of the program names the ledger: ", h("code", null, "quire explain ledger ID --deep"), " reads each copy."));
}

/** Return in words which programs suspect the bookie, and whether those of other machines are known. */
function clientWords(known) {
  if (!known) return "not known";
  const found = suspecting(known);
  const some = found.length ? `${counted(found.length, "program")}, see above` : "";
  if (known.missing) return [some ? `${some}. ` : "", mark("warn long", `! ${known.missing.what}`)];
  if (some) return some;
  return known.prometheus ? "none known to this server or to Prometheus" : "not this server. It has no --prometheus, which knows about other programs";
}

// -- jobs and actions ---------------------------------------------------------------------------

function jobs({ jobs: own, elsewhere, paused, waiting, order }, act) {
  const said = [
    waiting ? h("p", null, `The auditor waits for it to return until ${time(waiting.until_ms)}. Then its ledgers are copied.`) : "",
    order ? h("p", null, `${order.by} ordered at ${time(order.since_ms)} that this bookie be ${order.what === "drain" ? "emptied" : "decommissioned"}.`) : ""];
  const none = !own.length && !elsewhere.length && !paused.length && !waiting && !order;
  return section("Jobs that involve it", said, own.length ? jobTable("Jobs of this server, newest first", own, act) : "",
    elsewhere.length ? elsewhereTable("Jobs that other processes announce", elsewhere, act) : "",
    paused.length ? pausedTable("Paused until somebody resumes them", paused, act) : "",
    none ? h("p", { class: "quiet" }, "There are none.") : "");
}

function actions({ bookie, actions: can }, act) {
  const { id } = bookie;
  const all = [
    ["read_only", "Make read-only", "It refuses new entries until its next start, or until you make it writable. Its stored entries can still be read.",
      () => ask("PUT", `${path(id)}/readonly`, { body: { readOnly: true } }),
      { title: `Make ${id} read-only?`, text: "It refuses new entries, and writers use other bookies instead. Its stored entries can still be read. It becomes writable again at its next start.", action: "Make it read-only" }],
    ["writable", "Make writable", "It accepts new entries again, unless its disk is full or it is being decommissioned.",
      () => ask("PUT", `${path(id)}/readonly`, { body: { readOnly: false } }),
      { title: `Make ${id} writable?`, text: "It accepts new entries again, unless its disk is full or it is being decommissioned.", action: "Make it writable" }],
    ["decommission", "Decommission", "Copies its ledgers to other bookies, and then removes it from the cluster for good.",
      () => ask("PUT", "/api/v1/autorecovery/decommission", { body: { bookie_src: id } }), QUESTIONS.decommission(id), commandWith("quire bookie decommission", id)],
    ["take_back", "Stop decommissioning", "Withdraws the order, so that it accepts new entries again. Copies that were made stay where they are.",
      () => ask("DELETE", `${path(id)}/decommission`),
      { title: `Stop the decommissioning of ${id}?`, text: "The order is withdrawn, and a job that empties the bookie ends. The bookie accepts new entries again. Copies that were made stay where they are.", action: "Stop decommissioning" }, commandWith("quire bookie decommission", id, "--cancel")],
    ["recover", "Recover", "Copies the ledgers of this lost bookie to other bookies, from the replicas that are left.",
      () => ask("PUT", "/api/v1/autorecovery/bookie", { body: { bookie_src: [id] } }), QUESTIONS.recover(id), commandWith("quire bookie recover", id)],
  ];
  // What is possible comes first.
  return section("Actions", accessNote(), h("ul", { class: "actions" }, all.sort(([one], [other]) => can[other].possible - can[one].possible).map(([name, title, text, work, question, typed]) => {
    const { possible, why } = can[name];
    const press = possible ? button(title, `${title} ${id}`, work, act, question) : h("button", { type: "button", disabled: true, "aria-label": `${title} ${id}`, "aria-describedby": `why-${name}` }, title);
    return h("li", { class: possible ? null : "impossible" }, h("div", null, press), h("div", null, h("p", null, text),
      possible ? "" : h("p", { class: "quiet", id: `why-${name}` }, `Not possible now. ${why}.`), possible && typed ? command(typed) : ""));
  })));
}

// -- ledgers ------------------------------------------------------------------------------------

/** Return the entries that the bookie should have a part of, by the segments of the ledger that name it. */
function parts(ledger, id) {
  const named = ledger.segments.filter((one) => one.bookies.includes(id));
  const of = ledger.segments.length > 1 ? `in ${named.length} of ${ledger.segments.length} segments` : "";
  const [first, last] = [named[0], named.at(-1)];
  if (!first) return "–";
  const [from, to] = [first.first_entry_id, last.last_entry_id];
  const range = to === null ? `from ${count(from)} on` : to < from ? "none" : `${count(from)} to ${count(to)}`;
  return [range, of ? h("small", { class: "quiet" }, ` ${of}`) : ""];
}

function ledgers({ bookie: { id } }, found, query) {
  const columns = [["Ledger", ""], ["State", ""], ["Entries it should have", ""], ["Size", "number"], ["Ensemble / write / ack", ""], ["Created", ""]];
  const rows = found.ledgers.map((one) => one.error ? [link(`${one.ledger_id}`, "ledger", [one.ledger_id]), mark("bad", "✗ unreadable"), one.error, "–", "–", "–"] : [
    link(`${one.ledger_id}`, "ledger", [one.ledger_id]), mark(...(LEDGER[one.state] ?? ["note", one.state])), parts(one, id), bytes(one.length), `${one.ensemble} / ${one.write_quorum} / ${one.ack_quorum}`,
    one.ctime_ms === null ? "–" : time(one.ctime_ms)]);
  const age = found.age_s === null ? "" : found.age_s >= 5 ? `, as of ${seconds(found.age_s)} ago` : "";
  const counting = found.whole ? "" : `; ${counted(found.read, "ledger")} of the cluster have been read so far`;
  const first = !query.has("after");
  return section("Its ledgers", rows.length ? table(`Newest first, ${found.whole ? "" : "at least "}${counted(found.count, "ledger")}${age}${counting}`, columns, rows)
    : empty(first ? "No ledger uses this bookie" : "There are no more ledgers", found.whole ? "" : `${counted(found.read, "ledger")} of the cluster ${found.read === 1 ? "has" : "have"} been read so far.`),
  h("nav", { class: "pager", "aria-label": "Pages of ledgers" }, first ? "" : link("First page", "bookie", [id]),
    found.next === null ? "" : link("Next page", "bookie", [id], { after: found.next })));
}

// -- the page -----------------------------------------------------------------------------------

function details({ bookie, region, rack, report }, clients) {
  return section("Details", facts([
    ["Address", bookie.host === null ? "–" : `${bookie.host}:${bookie.port}${bookie.tls ? ", TLS" : ""}`],
    ["HTTP server", bookie.http.join(", ") || "none"], ["Region", region || "–"], ["Rack", rack === null ? "not known" : link(rack, "topology")],
    ["Version", report ? `Quire ${report.version}, Python ${report.python}` : "not known"], ["Started", report ? time(report.started_ms) : "not known"],
    ["Programs that suspect it", clientWords(clients)],
    ["Configuration", bookie.http.length ? link("Keys and where their values come from", "configuration", [bookie.id]) : "not known"],
  ]));
}

export const bookie = {
  title: ({ parts: [id] }) => `Bookie ${id ?? ""}`,
  crumbs: () => [["Bookies", address("bookies")]],
  async load({ parts: [id = ""], query }, signal) {
    const after = query.get("after") ?? "";
    const page = await get(path(id), {}, signal);
    const [found, series, clients] = await Promise.all([
      get(`${path(id)}/ledgers`, { limit: PAGE, ...(ID.test(after) ? { after } : {}) }, signal),
      page.series ? loadSeries(signal, id) : null,
      // The page is of use without it, for example while the metadata store is away.
      get(`${path(id)}/clients`, {}, signal).catch((error) => { if (signal.aborted) throw error; return null; })]);
    return { page, found, series, clients };
  },
  oldSince: ({ page }) => page.old_since_ms ?? null,
  render({ page, found, series, clients }, { query }, act) {
    return h("div", null,
      h("p", null, stateMarks(page.bookie)),
      page.problems.length ? section("What is wrong", problemList(page.problems, { [page.bookie.id]: "" })) : "", clientTable(clients),
      section("Key figures", figures(page, found)),
      // What can be done is more urgent than what the bookie did before.
      disks(page), actions(page, act), jobs(page, act), series ? seriesSection("Over time", series, OF_BOOKIE, () => act(() => {})) : "",
      ledgers(page, found, query), page.report ? store(page.report) : "", details(page, clients));
  },
};
