import { get } from "/ui/parts/api.js";
import { SIGNS, advice, command, commandWith, empty, quoted, signed, tiles } from "/ui/parts/controls.js";
import { address, h, link, mark, section, sortable, sorts, table } from "/ui/parts/dom.js";
import { bytes, clock, count, counted, date, localTimes, percent, rate, time } from "/ui/parts/format.js";
import { copyTable } from "/ui/parts/jobs.js";
import { pager } from "/ui/parts/lists.js";
import { records, streamCrumbs, streamTabs } from "/ui/pages/records.js";

const PAGE = 100;
const SEGMENTS_DRAWN_MAX = 300;
const SEGMENTS_LISTED_MAX = 1000;

const NAMESPACES = [{ text: "Namespace", by: (one) => one.path }, { text: "Streams", type: "number", by: (one) => one.streams }];

function namespaceTable({ namespaces, stream_counts: counts = {}, more }) {
  const rows = namespaces.map((path) => ({ path, streams: counts[path] }));
  return [sortable("namespaces", sorts(`${counted(rows.length, "namespace")} by path.`), NAMESPACES, rows, (one) => [link(one.path, "streams", [one.path]), count(one.streams)], { text: "Namespace", down: false }),
    more ? [h("p", null, "Not all namespaces are shown. To list them:"), command("quire namespace list")] : "",
    h("p", { class: "quiet" }, "Each partition of a topic counts as a stream.")];
}

function searchForm(namespace, value) {
  const input = h("input", { id: "stream-part", type: "search", autocomplete: "off", maxlength: 200, value });
  const submit = (event) => {
    event.preventDefault();
    location.hash = address("streams", [namespace], input.value ? { search: input.value } : {});
  };
  return h("form", { role: "search", onsubmit: submit },
    h("div", null, h("label", { for: "stream-part" }, "Part of a name"), input), h("button", null, "Search"));
}

/** The mark of a subscription that can no longer read the records after its position. */
export const MISSED = "! next records were truncated unread";

/** The columns of figures, which a row of `figures` fills. */
export const FIGURES = [
  { text: "Records", type: "number", by: (one) => one.records }, { text: "Size", type: "number", by: (one) => one.bytes },
  { text: "Records/s", type: "number", by: (one) => one.records_per_s }, { text: "Bytes/s", type: "number", by: (one) => one.bytes_per_s },
  { text: "Lag", type: "number", by: (one) => one.lag }, { text: "Last write", type: "when", by: (one) => one.last_time }];
const STREAMS = [{ text: "Stream", by: (one) => one.name }, ...FIGURES];

/** Return a number, marked as a lower bound if not all segments were looked at. */
export const least = (one, value) => (one.whole === false ? `≥ ${value}` : value);

const lag = (one) => one.lag === null || one.lag === undefined ? (one.subscriptions === 0 ? h("span", { class: "quiet" }, "no subscription") : "–")
  : [one.lag ? counted(one.lag, "record") : "none", h("small", { class: "quiet second" }, ` ${one.slowest}${one.subscriptions > 1 ? `, slowest of ${count(one.subscriptions)}` : ""}`)];

export const written = (text) => (text ? time(Date.parse(text)) : "–");

/** Return the cells of FIGURES for a stream or a topic. They are empty if it was not looked at yet. */
export function figures(one) {
  if (one.waits) return [h("span", { class: "quiet" }, "reading …"), "", "", "", "", ""];
  return [least(one, count(one.records)), least(one, bytes(one.bytes)), rate(one.records_per_s), rate(one.bytes_per_s, "B"), lag(one), written(one.last_time)];
}

function streamRow(one, namespace) {
  if (one.partitions) return topicRow(one, namespace);
  const name = link(one.name, "stream", [namespace, one.name]);
  if (one.error) return [name, mark("bad", "✗ unreadable"), "–", "–", "–", "–", one.error];
  return [[name, one.ended ? [" ", mark("note", "ended")] : ""], ...figures(one)];
}

function topicRow(one, namespace) {
  const name = [link(one.name, "topic", [namespace, one.name]), " ", mark("note", `topic, ${counted(one.partitions, "partition")}`)];
  if (one.deleting) return [[...name, " ", mark("warn", "! deletion not complete")], "–", "–", "–", "–", "–", "–"];
  return [[...name, one.ended ? [" ", mark("note", "ended")] : "", one.error ? [" ", mark("bad", "✗ partly unreadable")] : ""], ...figures(one)];
}

/** Return the rows of a page: its topics, and the streams that are not among their partitions. */
function rowsOf({ streams: names, topics, statistics }) {
  const partitions = new Set(topics.filter((one) => !one.deleting).flatMap((one) => Array.from({ length: one.partitions }, (_, at) => `${one.name}/${at}`)));
  const found = (name) => statistics[name] ?? { waits: true };
  return [...topics.map((one) => ({ ...(one.deleting ? {} : found(one.name)), ...one })),
    ...names.filter((name) => !partitions.has(name)).map((name) => ({ name, ...found(name) }))];
}

/** Return the numbers of streams and topics among the rows, in words. */
function amount(rows) {
  const topics = rows.filter((one) => one.partitions).length;
  const parts = [rows.length > topics ? counted(rows.length - topics, "stream") : "", topics ? counted(topics, "topic") : ""];
  return parts.filter(Boolean).join(" and ");
}

export const RATES = "Rates are averages between the last two readings of a stream, so they appear after some seconds. The lag is that of the slowest subscription.";

export const streams = {
  title: ({ parts }) => (parts[0] ? `Streams of ${parts[0]}` : "Streams"),
  crumbs: ({ parts }) => (parts[0] ? [["Namespaces", address("streams")]] : []),
  controls: ({ parts, query }) => (parts[0] ? searchForm(parts[0], query.get("search") ?? "") : null),
  load({ parts, query }, signal) {
    if (!parts[0]) return get("/api/v1/quire/namespaces", {}, signal);
    const given = ["search", "after"].filter((name) => query.get(name)).map((name) => [name, query.get(name)]);
    return get("/api/v1/quire/streams", { namespace: parts[0], limit: PAGE, statistics: true, ...Object.fromEntries(given) }, signal);
  },
  render(data, { parts: [namespace], query }) {
    if (!namespace) {
      return data.namespaces.length
        ? section("Namespaces", namespaceTable(data))
        : empty("There are no namespaces yet", "A namespace is created with a command.", "quire namespace create PATH");
    }
    const kept = query.get("search") ? { search: query.get("search") } : {};
    const rows = rowsOf(data);
    return h("div", null,
      data.unreadable ? h("div", { class: "alert bad" }, h("p", null, `✗ ${data.unreadable}. The partitions of such a topic are listed as streams.`)) : "",
      rows.length ? sortable(`streams ${namespace}`, sorts(`${amount(rows)} by name.`), STREAMS, rows, (one) => streamRow(one, namespace), { text: "Stream", down: false })
        : empty(query.has("search") ? "No streams were found" : query.has("after") ? "There are no more streams" : "There are no streams yet", data.next !== null ? "Not all names have been searched yet." : ""),
      pager("Pages of streams", [["First page", query.has("after") && address("streams", [namespace], kept)],
        ["Next page", data.next !== null && address("streams", [namespace], { ...kept, after: data.next })]]),
      h("p", { class: "quiet" }, RATES, rows.some((one) => one.partitions) ? " The figures of a topic are sums over its partitions." : ""));
  },
};

const SEGMENT = { "in progress": ["note", "in progress"], completed: ["", "completed"], truncated: ["warn", "truncated"], lost: ["bad", "✗ lost"] };

const began = (segment, byTime) => (segment.created ? Date.parse(segment.created) : byTime && segment.first_txid ? Number(segment.first_txid) : null);

/** Draw the segments on a line of time. What a screen reader needs is in the table below. */
function timeline(data, now) {
  const byTime = data.settings.txids === "time";
  const drawn = data.segments.map((one) => ({ ...one, from: began(one, byTime), to: one.completed ? Date.parse(one.completed) : now }))
    .filter((one) => one.from !== null && one.to >= one.from).slice(-SEGMENTS_DRAWN_MAX);
  if (!drawn.length) return "";
  const first = Math.min(...drawn.map((one) => one.from));
  const last = Math.max(...drawn.map((one) => one.to));
  const share = (ms) => (last > first ? (ms - first) / (last - first) : 0);
  return h("figure", { class: "timeline" },
    h("figcaption", null, drawn.length < data.segments.length ? `The last ${drawn.length} of ${counted(data.segments.length, "segment")} by time` : "Segments by time"),
    h("ol", null, drawn.map((one) => h("li", { class: (SEGMENT[one.state] ?? ["note"])[0], style: { "--from": share(one.from), "--to": share(one.to) } },
      h("a", { href: address("ledger", [one.ledger_id]), title: `Segment ${one.number}: ${one.state}, ${counted(one.records, "record")}`,
        "aria-label": `Segment ${one.number}, ${one.state}, ${counted(one.records, "record")}, from ${time(one.from)} to ${one.completed ? time(one.to) : "now"}` }, h("span", null, `${one.number}`))))),
    h("p", { class: "ends" }, h("span", null, time(first)), h("span", null, data.segments.some((one) => one.state === "in progress") ? "now" : time(last))));
}

const SEGMENTS = [
  { text: "Segment", by: (one) => one.number }, { text: "State", by: (one) => one.state }, { text: "Records", type: "number", by: (one) => one.records },
  { text: "Size", type: "number", by: (one) => one.bytes }, { text: "Positions" }, { text: "Began", by: (one) => one.created }, { text: "Completed", by: (one) => one.completed }, { text: "Ledger" }];

function segmentRow(one, stream) {
  return [`${one.number}`, mark(...(SEGMENT[one.state] ?? ["note", one.state])), count(one.records), bytes(one.bytes),
    h("span", { class: "mono" }, `${one.first} to ${one.last ?? "–"}`), written(one.created), written(one.completed),
    [link(`${one.ledger_id}`, "ledger", [one.ledger_id]), one.records && one.state !== "lost" && one.state !== "truncated"
      ? [" ", link("show records", "stream", [...stream, "records"], { from: one.first })] : ""]];
}

function lagRow(one, data) {
  if (one.error) return [one.name, mark("bad", "✗ unreadable"), "–", one.error];
  const share = data.records ? Math.min(1, one.records / data.records) : 0;
  return [one.name, [h("span", { class: "mono" }, one.position ?? "no position committed yet"),
    one.missed ? [" ", mark("warn", MISSED)] : ""], count(one.records),
    h("div", { class: "usage" }, h("div", { class: "words" }, one.records ? `${percent(1 - share)} read` : "✓ caught up"),
      h("div", { class: "bar", "aria-hidden": "true" }, h("span", { style: { "--share": 1 - share } })))];
}

/** What is said of ledgers in each state of their replicas, the worst first: the kind, the words of a list, and a sentence. */
const REPLICAS = {
  lost: ["bad", "lost", (n) => `${counted(n, "ledger")} ${n === 1 ? "does" : "do"} not exist any more, so ${n === 1 ? "its" : "their"} records cannot be read`],
  unreadable: ["bad", "without a copy", (n) => `Some entries of ${counted(n, "ledger")} have no copy on a registered bookie, so they cannot be read now`],
  unknown: ["bad", "with unreadable metadata", (n) => `The metadata of ${counted(n, "ledger")} cannot be read`],
  lacking: ["warn", "without all copies", (n) => `${counted(n, "ledger")} ${n === 1 ? "has" : "have"} copies on bookies that are gone, and ${n === 1 ? "is" : "are"} not marked for repair yet`],
  marked: ["warn", "waiting for repair", (n) => `${counted(n, "ledger")} ${n === 1 ? "lacks" : "lack"} copies, and ${n === 1 ? "waits" : "wait"} for repair`],
  repairing: ["warn", "being repaired", (n) => `${counted(n, "ledger")} ${n === 1 ? "is" : "are"} being repaired`],
};

/** Return the states of `REPLICAS` that some ledgers have. */
const incomplete = (one) => Object.entries(REPLICAS).filter(([state]) => one[state]);

/** Return the address of the list of ledgers in a state. The list knows only some of the states. */
const listOf = (state, owner) => (["lacking", "marked", "repairing"].includes(state) ? address("ledgers", [], { owner: "stream", owner_name: owner, replication: state }) : null);

/** Return the cell with the state of the replicas of a stream. It is null before the first look. */
export function replicaCell(one, owner) {
  if (!one) return h("span", { class: "quiet" }, "reading …");
  if (one.error) return [mark("bad", "✗ not known"), " ", one.error];
  const found = incomplete(one);
  if (!found.length) return one.ledgers ? "complete" : "–";
  return found.map(([state, [kind, words]], at) => {
    const href = one.named[state]?.length === 1 ? address("ledger", one.named[state]) : listOf(state, owner);
    const text = signed(kind, `${least(one, count(one[state]))} ${words}`);
    return [at ? " " : "", mark(kind, href ? h("a", { href }, text) : text)];
  });
}

/** Return the key figure of the replicas of a stream or a topic. */
export function replicaTile(one) {
  const name = "Copies";
  if (!one || one.error) return { name, value: "–", below: one ? one.error : "reading …" };
  const found = incomplete(one);
  const number = found.reduce((total, [state]) => total + one[state], 0);
  if (!number) return { name, value: one.ledgers ? "complete" : "–", below: one.ledgers ? `in ${least(one, counted(one.ledgers, "ledger"))}` : "no ledger yet" };
  return { name, value: `${least(one, count(number))} incomplete`, below: `of ${counted(one.ledgers, "ledger")}`, kind: found[0][1][0] };
}

/** Say which ledgers of a stream or a topic lack copies, with links. `owner` is a part of the name of the owners. `said`
 * are states that the page reports in another way. */
export function replicaAlert(one, owner, said = []) {
  const found = one && !one.error ? incomplete(one).filter(([state]) => !said.includes(state)) : [];
  if (!found.length) return "";
  const ids = (state) => {
    const named = one.named[state] ?? [];
    const more = one[state] - named.length;
    const list = listOf(state, owner);
    return [named.map((id, at) => [at ? ", " : "", link(`${id}`, "ledger", [id])]), more ? [" and ", list ? h("a", { href: list }, `${count(more)} more`) : `${count(more)} more`] : ""];
  };
  return h("div", { class: `alert ${found[0][1][0]}` },
    found.map(([state, [kind, , words]]) => h("p", null, `${SIGNS[kind]} ${words(one[state])}: ${one[state] === 1 ? "ledger" : "ledgers"} `, ids(state), ".")),
    h("p", null, "What to do: The ", h("a", { href: "#/" }, "overview"), " says what is wrong and what to type, and ", link("Repair and jobs", "work"), " how far the repair is."));
}

/** The share of the limit of a stream from which the page says what to do. */
const NEARLY_FULL = 0.8;

/** Say that appends are refused, or soon will be, and which commands make room or raise the limit. */
function nearlyFull(data, namespace, limit) {
  const within = `--namespace ${quoted(namespace)}`;
  const kept = data.segments.filter((one) => one.state !== "truncated").at(-1)?.first;
  return h("div", { class: "alert warn" },
    h("p", null, `! This stream holds ${bytes(data.bytes)} of the ${bytes(limit)} that its setting bytes_max allows. An append that does not fit is refused with StreamQuotaError.`),
    h("p", null, "What to do: Raise the limit, and open new writers:"), command(commandWith("quire stream set", data.name, `${within} bytes_max=${2 * limit}`)),
    kept && data.records ? [h("p", null, "Or give up the oldest records, for example all but the newest segment:"), command(commandWith("quire stream truncate", data.name, `${within} --before ${kept}`))] : "");
}

/** Say what is wrong with the continuous copies of a stream. */
export const copyAlerts = (copies) => copies.filter((one) => one.problem).map(({ problem }) => h("div", { class: "alert warn" },
  h("p", null, `! ${localTimes(problem.what)}.`), advice(problem.next)));

export const stream = {
  at: (parts) => (parts[2] === "records" ? records : stream),
  title: ({ parts }) => `Stream ${parts[1]}`,
  crumbs: streamCrumbs,
  interval: 5000,
  load: ({ parts }, signal) => get("/api/v1/quire/stream", { namespace: parts[0] ?? "", name: parts[1] ?? "" }, signal),
  render(data, { parts }) {
    const now = data.figures ?? {};
    const behind = data.lag.map((one) => one.records).filter((value) => value !== null);
    const slowest = behind.length ? Math.max(...behind) : null;
    const limit = data.settings.bytes_max;
    const copies = data.copies ?? [];
    const whose = data.lag.find((one) => one.records !== null && one.records === slowest)?.name;
    return h("div", null, streamTabs(parts[0], parts[1], "segments"),
      data.topic ? h("p", null, `Partition ${parts[1].slice(data.topic.name.length + 1)} of `, link(`topic ${data.topic.name}`, "topic", [parts[0], data.topic.name]), `, which has ${count(data.topic.partitions)}.`) : "",
      data.lost.length ? h("div", { class: "alert bad" }, h("p", null, `✗ ${counted(data.lost.length, "segment")} of this stream lost ${data.lost.length === 1 ? "its" : "their"} ledger.`),
        data.lost.map((one) => h("p", null, `${one.what} (ledger ${one.ledger_id})`))) : "",
      limit && data.bytes >= NEARLY_FULL * limit ? nearlyFull(data, parts[0], limit) : "", copyAlerts(copies),
      replicaAlert(data.replicas, `${parts[0]}/${parts[1]}`, ["lost"]),
      tiles([
        { name: "Records", value: count(data.records), below: `that can be read, in ${counted(data.segments.length, "segment")}` },
        { name: "Size", value: bytes(data.bytes), below: limit ? `${percent(data.bytes / limit)} of the limit of ${bytes(limit)}` : "payloads, without replicas" },
        { name: "Written now", value: rate(now.records_per_s), below: rate(now.bytes_per_s, "B") },
        { name: "Last write", value: data.last_time ? [clock(Date.parse(data.last_time) / 1000)] : "–", below: `${data.last_time ? `${date(Date.parse(data.last_time))}, ` : ""}${data.ended ? "the stream has ended" : data.last ? `position ${data.last}` : "no records yet"}` },
        { name: "Largest lag", value: slowest === null ? "–" : count(slowest), below: whose ? `records, by ${whose}${behind.length > 1 ? `, the slowest of ${counted(data.subscriptions.length, "subscription")}` : ""}` : data.subscriptions.length ? counted(data.subscriptions.length, "subscription") : "no subscription" },
        replicaTile(data.replicas),
      ]),
      section("Subscriptions", data.lag.length ? table(
        `Progress of each subscription${data.lag.length < data.subscriptions.length ? `: the first ${data.lag.length} of ${data.subscriptions.length}` : ""}`,
        [["Subscription", ""], ["Next position", ""], ["Records behind", "number"], ["Progress", ""]], data.lag.map((one) => lagRow(one, data)))
        : empty("There are no subscriptions", "A reader that commits its position appears here.")),
      copies.length ? section("Continuous copies", copyTable("As their processes report them", copies, true)) : "",
      section("Segments", timeline(data, Date.now()),
        sortable(`segments ${parts[0]} ${parts[1]}`, sorts(`${counted(data.segments.length, "segment")}.`, "them"), SEGMENTS, data.segments.slice(-SEGMENTS_LISTED_MAX),
          (one) => segmentRow(one, parts), { text: "Segment", down: true })));
  },
};
