// Values over time: where they come from, which range is shown, and the charts that they make.

import { get } from "/ui/parts/api.js";
import { chart } from "/ui/parts/chart.js";
import { choice } from "/ui/parts/controls.js";
import { h } from "/ui/parts/dom.js";
import { seconds } from "/ui/parts/format.js";

const KEPT = "quire.range";
const SHORTEST_S = 900;
const RANGES = { 900: "15 min", 3600: "1 h", 21600: "6 h", 86400: "1 day", 604800: "7 days", 2592000: "30 days" };
const NO_OPERATIONS = "Nothing was measured in this range";
const NO_BOOKIE = "No bookie with an HTTP server (--http) reported in this range";

/** Each chart is { key, title, unit, lines, nothing }: `lines` are the names of series with their words. */
export const LOAD = [
  { key: "entries", title: "Adds and reads per second", unit: "rate", lines: { adds_per_s: "adds", reads_per_s: "reads" }, nothing: NO_BOOKIE },
  { key: "bytes", title: "Bytes per second", unit: "bytes", lines: { add_bytes_per_s: "added", read_bytes_per_s: "read" }, nothing: NO_BOOKIE },
];
export const LATENCY = [
  { key: "adds", title: "Latency of adds", unit: "ms", lines: { add_p99_ms: "p99", add_p50_ms: "p50" }, nothing: NO_OPERATIONS },
  { key: "reads", title: "Latency of reads", unit: "ms", lines: { read_p99_ms: "p99", read_p50_ms: "p50" }, nothing: NO_OPERATIONS },
  { key: "stages", title: "Stages of an add, p99", unit: "ms", lines: { queue_p99_ms: "waiting", sync_p99_ms: "disk sync", log_p99_ms: "until logged" }, nothing: NO_OPERATIONS },
];
export const DISK_OF_CLUSTER = { key: "disk", title: "Disk use", unit: "share", overlap: true, lines: { disk_used_max: "fullest bookie", disk_used: "all registered bookies" } };
export const DISK_OF_BOOKIE = { key: "disk", title: "Disk use", unit: "share", lines: { disk_used: "used" } };
export const REPLICATION = { key: "replication", title: "Under-replicated ledgers", unit: "count", lines: { under_replicated: "ledgers" } };
export const BOOKIES = { key: "bookies", title: "Bookies", unit: "count", overlap: true, lines: { bookies: "registered", bookies_writable: "writable" } };

export const OF_CLUSTER = [...LOAD, ...LATENCY, DISK_OF_CLUSTER, REPLICATION, BOOKIES];
export const OF_BOOKIE = [...LOAD, ...LATENCY, DISK_OF_BOOKIE];

/** Return the chosen range in seconds. It is kept for this tab. */
export function chosenRange() {
  const kept = Number(sessionStorage.getItem(KEPT));
  return kept in RANGES ? kept : SHORTEST_S;
}

/** Load the series of the cluster, or of a bookie, in the chosen range. If they cannot be loaded, the
 * answer is { error }, so that the rest of a page is shown without charts. */
export async function loadSeries(signal, bookie = null) {
  const asked = () => get("/api/v1/quire/series", { range: chosenRange(), ...(bookie === null ? {} : { bookie }) }, signal);
  try {
    return await asked();
  } catch (error) {
    if (signal?.aborted || error.status === 401) throw error;
    if (error.status === 400 && chosenRange() > 3600) {
      // Another server, without Prometheus, is at this address now.
      sessionStorage.removeItem(KEPT);
      return asked().catch((again) => ({ error: `${again.message}. ${again.remedy ?? ""}` }));
    }
    return { error: `${error.message}. ${error.remedy ?? ""}` };
  }
}

/** Return the newest value of a series that `loadSeries` returned, or null. Prometheus has only the
 * means of longer times. */
export const newest = (data, name) => (data.source === "memory" ? data.series[name]?.at(-1) ?? null : null);

/** Return a section with charts of what `loadSeries` returned, and the choice of the range.
 *
 * @param title the heading
 * @param data the answer of `loadSeries`
 * @param charts a list of charts, such as OF_CLUSTER
 * @param reload a function that loads the page again
 */
export function seriesSection(title, data, charts, reload) {
  const pick = (value) => {
    sessionStorage.setItem(KEPT, value);
    reload();
  };
  const offered = data.ranges_s ?? [SHORTEST_S, chosenRange()];
  const ranges = [...new Set(offered)].map((value) => ({ value, text: RANGES[value] ?? `${value} s` }));
  return h("section", { class: "series" },
    h("div", { class: "section-head" }, h("h2", null, title), choice("range", "Time range of the charts", ranges, chosenRange(), pick)),
    data.error ? h("div", { class: "alert warn" }, h("p", null, `! The charts cannot be shown. ${data.error}`)) : [drawn(data, charts), origin(data)]);
}

function drawn(data, charts) {
  const length = Math.max(0, ...Object.values(data.series).map((values) => values.length));
  const times = Array.from({ length }, (_, at) => data.first_s + at * data.step_s);
  return h("div", { class: "charts" }, charts.map((one) => chart(one.key, {
    title: one.title, unit: one.unit, nothing: one.nothing, overlap: one.overlap, times, range: [data.to_s - data.range_s, data.to_s],
    series: Object.entries(one.lines).map(([name, words]) => ({ name: words, values: data.series[name] ?? times.map(() => null) })),
  })));
}

/** Return a line that says where the values come from, and how dense they are. */
function origin(data) {
  const step = seconds(data.step_s);
  return h("p", { class: "quiet" }, data.source === "prometheus" ? `From Prometheus, one value every ${step}.`
    : `Recorded by this server since it started, for an hour at most, one value every ${step}. Gaps are times without an answer.`);
}
