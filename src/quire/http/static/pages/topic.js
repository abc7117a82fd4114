// One topic: the sums over its partitions, each partition, its subscriptions, and the records of all partitions.

import { get } from "/ui/parts/api.js";
import { command, commandWith, empty, quoted, tiles } from "/ui/parts/controls.js";
import { address, h, link, mark, section, sortable, sorts, table } from "/ui/parts/dom.js";
import { bytes, clock, count, counted, date, percent, rate } from "/ui/parts/format.js";
import { copyTable } from "/ui/parts/jobs.js";
import { pageTabs, pager } from "/ui/parts/lists.js";
import { askFor, passwordForm, passwordOf } from "/ui/parts/payload.js";
import { NO_RECORDS, PAGE, SHOWN_BYTES, STOPPED, parsed, placeForm, recordLines } from "/ui/pages/records.js";
import { FIGURES, copyAlerts, figures, least, MISSED, RATES, replicaAlert, replicaCell, replicaTile } from "/ui/pages/streams.js";

const PARTITIONS = [{ text: "Partition", by: (one) => one.partition }, ...FIGURES, { text: "Copies" }, { text: "" }];

function partitionRow(one, namespace) {
  const name = link(`${one.partition}`, "stream", [namespace, one.stream]);
  const records = link("Show records", "stream", [namespace, one.stream, "records"]);
  const copies = replicaCell(one.replicas, `${namespace}/${one.stream}`);
  if (one.error) return [name, mark("bad", "✗ unreadable"), "–", "–", "–", "–", one.error, copies, records];
  return [[name, one.ended ? [" ", mark("note", "ended")] : ""], ...figures(one), copies, records];
}

function keyFigures(data, sums) {
  const last = sums.last_time ? Date.parse(sums.last_time) : null;
  return tiles([
    { name: "Records", value: least(sums, count(sums.records)), below: `that can be read, in ${counted(data.partitions, "partition")}` },
    { name: "Size", value: least(sums, bytes(sums.bytes)), below: "payloads, without replicas" },
    { name: "Written now", value: rate(sums.records_per_s), below: rate(sums.bytes_per_s, "B") },
    { name: "Last write", value: last === null ? "–" : [clock(last / 1000)], below: last === null ? (sums.ended ? "all partitions have ended" : "") : `${date(last)}${sums.ended ? ", all partitions have ended" : ""}` },
    { name: "Largest lag", value: count(sums.lag), below: sums.slowest ? `records, by ${sums.slowest}${sums.subscriptions > 1 ? `, the slowest of ${counted(sums.subscriptions, "subscription")}` : ""}` : sums.subscriptions === 0 ? "no subscription" : "" },
    replicaTile(data.replicas?.[data.name]),
  ]);
}

const deletion = (name, namespace) => h("div", { class: "alert warn" },
  h("p", null, "! This topic is being deleted, or its deletion was interrupted. It can no longer be written or read."),
  h("p", null, "What to do: If no process deletes it now, complete the deletion:"), command(commandWith("quire stream delete", name, `--namespace ${quoted(namespace)}`)));

const topicTabs = (namespace, name, here) => pageTabs(`Topic ${name}`, [
  ["Partitions and lag", address("topic", [namespace, name]), here === "partitions"], ["Records", address("topic", [namespace, name, "records"]), here === "records"]]);

/** Subscriptions whose partitions are shown. They stay open when the page refreshes. */
const opened = new Set();

/** Return the lag of a subscription in each partition, the largest first, in a part that opens. */
function partitionLags(one, namespace, name) {
  const known = one.partitions.filter((row) => row.records !== null).sort((left, right) => right.records - left.records);
  const broken = one.partitions.filter((row) => row.records === null);
  const worst = known[0];
  const words = worst?.records ? `most in partition ${worst.partition}: ${count(worst.records)}` : "none in any partition";
  const key = JSON.stringify([namespace, name, one.name]);
  const details = h("details", { id: `lags-${one.name}`, open: opened.has(key) }, h("summary", { id: `lags-of-${one.name}` }, broken.length ? `${counted(broken.length, "partition")} unreadable` : words),
    h("ul", { class: "items" }, [...known, ...broken].map((row) => h("li", null, link(`Partition ${row.partition}`, "stream", [namespace, `${name}/${row.partition}`]), ": ",
      row.error ? row.error : [row.missed ? [mark("warn", MISSED), " "] : "", counted(row.records, "record"), row.position ? [", next position ", h("span", { class: "mono" }, row.position)] : ", no position committed yet"]))));
  details.addEventListener("toggle", () => (details.open ? opened.add(key) : opened.delete(key)));
  return details;
}

function subscriptions(data, sums, namespace) {
  const row = (one) => {
    const share = sums.records ? Math.min(1, one.records / sums.records) : 0;
    return [one.name, one.whole ? count(one.records) : `≥ ${count(one.records)}`,
      h("div", { class: "usage" }, h("div", { class: "words" }, one.records ? `${percent(1 - share)} read` : one.whole ? "✓ caught up" : "–"),
        h("div", { class: "bar", "aria-hidden": "true" }, h("span", { style: { "--share": 1 - share } }))), [one.missed ? mark("warn", MISSED) : "", partitionLags(one, namespace, data.name)]];
  };
  return section("Subscriptions", data.subscriptions.length ? table("Progress of each subscription, summed over the partitions where it has committed a position",
    [["Subscription", ""], ["Records behind", "number"], ["Progress", ""], ["By partition", ""]], data.subscriptions.map(row))
    : sums.subscriptions === undefined ? h("p", { class: "quiet" }, "reading …") : empty("There are no subscriptions", "A reader that commits its position appears here."));
}

const topicCrumbs = ({ parts: [namespace] }) => [["Namespaces", address("streams")], [`Streams of ${namespace}`, address("streams", [namespace])]];

const PLACES = [["newest", "the newest records"], ["earliest", "the oldest record"], ["time", "a time"], ["txid", "a transaction id"]];
const NUMBER = /^[0-9]{1,2}$/;

const partitionOf = (query) => (NUMBER.test(query.get("partition") ?? "") ? { partition: Number(query.get("partition")) } : {});

/** Return the place of a page in the request of the server: positions of another page, or a place. */
function placeOf(query) {
  for (const name of ["before", "after"]) {
    if (query.get(name)) return { [name]: query.get(name).split(",") };
  }
  return { from: query.get("from") ?? "newest" };
}

const records = {
  title: ({ parts }) => `Records of topic ${parts[1]}`,
  crumbs: topicCrumbs,
  interval: null,
  controls({ parts: [namespace, name], query }) {
    const only = h("input", { id: "records-partition", inputmode: "numeric", autocomplete: "off", pattern: "[0-9]{1,2}", placeholder: "all", class: "partition-field", value: partitionOf(query).partition ?? "" });
    const field = h("div", null, h("label", { for: "records-partition" }, "Partition"), only);
    return placeForm(PLACES, parsed(query.get("from") ?? "newest"), [field], (from) => {
      location.hash = address("topic", [namespace, name, "records"], { from, ...(only.value ? { partition: Number(only.value) } : {}) });
    });
  },
  load: ({ parts: [namespace, name], query }, signal) => askFor("/api/v1/quire/topic/records", {
    namespace, name, ...placeOf(query), ...partitionOf(query), limit: PAGE, shown_bytes: SHOWN_BYTES, ...passwordOf(`${namespace}/${name}`) }, signal),
  render(data, { parts: [namespace, name], query }, act) {
    const above = topicTabs(namespace, name, "records");
    if (data.locked) return h("div", null, above, passwordForm(`${namespace}/${name}`, data, act));
    const newest = (query.get("from") ?? "newest") === "newest";
    const at = (values) => address("topic", [namespace, name, "records"], { ...partitionOf(query), ...values });
    const from = { from: query.get("from") ?? "newest" };
    const newer = data.next ?? data.end;
    const pages = (label) => pager(label, [["Oldest", at({ from: "earliest" })], ["Older", data.previous && at({ ...from, before: data.previous.join(",") })],
      ["Newer", newer && at({ ...from, after: newer.join(",") })], ["Newest", at({ from: "newest" })]]);
    const where = { link: (one) => link(`Partition ${one.partition} from here`, "stream", [namespace, `${name}/${one.partition}`, "records"], { from: one.position }) };
    const only = partitionOf(query).partition;
    return h("div", null, above, pages("Pages of records, above"),
      data.unreadable.map((one) => h("div", { class: "alert bad unreadable" }, h("p", null, `✗ Partition ${one.partition} could not be read, so its records are missing here: ${one.error.what}`), one.error.remedy ? h("p", null, one.error.remedy) : "")),
      data.items.length ? recordLines(data.items, newest, where) : empty("There are no records here", NO_RECORDS),
      data.stopped ? h("p", { class: "alert warn" }, `! ${STOPPED[data.stopped]}`) : "", data.items.length ? pages("Pages of records") : "",
      h("p", { class: "quiet" }, only === undefined ? `Records of ${counted(data.partitions, "partition")}, ordered by transaction id, which most streams assign by time. Records of one partition are in their own order.`
        : [`Only partition ${only} of ${data.partitions}. `, h("a", { href: address("topic", [namespace, name, "records"], from) }, "Show all partitions")]));
  },
};

export const topic = {
  at: (parts) => (parts[2] === "records" ? records : topic),
  title: ({ parts }) => `Topic ${parts[1]}`,
  crumbs: topicCrumbs,
  interval: 5000,
  load: ({ parts }, signal) => get("/api/v1/quire/topic", { namespace: parts[0] ?? "", name: parts[1] ?? "" }, signal),
  render(data, { parts: [namespace] }) {
    const sums = data.statistics[data.name] ?? {};
    const rows = data.streams.map((stream) => ({ stream, partition: Number(stream.slice(data.name.length + 1)), ...(data.statistics[stream] ?? { waits: true }), replicas: data.replicas?.[stream] }));
    const copies = data.copies ?? [];
    return h("div", null, data.deleting ? deletion(data.name, namespace) : [topicTabs(namespace, data.name, "partitions"), copyAlerts(copies),
      replicaAlert(data.replicas?.[data.name], `${namespace}/${data.name}/`), keyFigures(data, sums)],
      data.deleting ? "" : subscriptions(data, sums, namespace),
      copies.length ? section("Continuous copies", copyTable("As their processes report them", copies, true)) : "",
      section(data.deleting ? "Partitions that are left" : "Partitions",
        rows.length ? sortable(`topic ${namespace} ${data.name}`, sorts(`${counted(rows.length, "partition")}.`, "them"), PARTITIONS, rows, (one) => partitionRow(one, namespace), { text: "Partition", down: false })
          : empty("No partition is left", "Only the name of the topic is still stored.")),
      h("p", { class: "quiet" }, RATES, " The figures of the topic are sums over its partitions."));
  },
};
