// One topic: the sums over its partitions, and each partition.

import { get } from "/ui/parts/api.js";
import { command, empty, tiles } from "/ui/parts/controls.js";
import { address, h, link, mark, section, sortable } from "/ui/parts/dom.js";
import { bytes, clock, count, counted, date, rate } from "/ui/parts/format.js";
import { FIGURES, figures, least, RATES } from "/ui/pages/streams.js";

const PARTITIONS = [{ text: "Partition", by: (one) => one.partition }, ...FIGURES, { text: "" }];

const SAFE = /^[\w./:@%+=,-]+$/;
/** Return a word of a command, quoted for a shell if it needs quotes. */
const quoted = (word) => (SAFE.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function partitionRow(one, namespace) {
  const name = link(`${one.partition}`, "stream", [namespace, one.stream]);
  const records = link("Show records", "stream", [namespace, one.stream, "records"]);
  if (one.error) return [name, mark("bad", "✗ unreadable"), "–", "–", "–", "–", one.error, records];
  return [[name, one.ended ? [" ", mark("note", "ended")] : ""], ...figures(one), records];
}

function keyFigures(data, sums) {
  const last = sums.last_time ? Date.parse(sums.last_time) : null;
  return tiles([
    { name: "Records", value: least(sums, count(sums.records)), below: `that can be read, in ${counted(data.partitions, "partition")}` },
    { name: "Size", value: least(sums, bytes(sums.bytes)), below: "payload, one copy" },
    { name: "Written now", value: rate(sums.records_per_s), below: rate(sums.bytes_per_s, "B") },
    { name: "Last write", value: last === null ? "–" : [clock(last / 1000)], below: last === null ? (sums.ended ? "all partitions have ended" : "") : `${date(last)}${sums.ended ? ", all partitions have ended" : ""}` },
    { name: "Largest lag", value: count(sums.lag), below: sums.slowest ? `records, ${sums.slowest}${sums.subscriptions > 1 ? `, slowest of ${count(sums.subscriptions)}` : ""}` : sums.subscriptions === 0 ? "no subscription" : "" },
  ]);
}

const deletion = (name, namespace) => h("div", { class: "alert warn" },
  h("p", null, "! This topic is being deleted, or its deletion was interrupted. It can no longer be written or read."),
  h("p", null, "What to do: If no process deletes it now, complete the deletion:"), command(`quire stream delete ${quoted(name)} --namespace ${quoted(namespace)}`));

export const topic = {
  title: ({ parts }) => `Topic ${parts[1]}`,
  crumbs: ({ parts: [namespace] }) => [["Namespaces", address("streams")], [`Streams of ${namespace}`, address("streams", [namespace])]],
  interval: 5000,
  load: ({ parts }, signal) => get("/api/v1/quire/topic", { namespace: parts[0] ?? "", name: parts[1] ?? "" }, signal),
  render(data, { parts: [namespace] }) {
    const sums = data.statistics[data.name] ?? {};
    const rows = data.streams.map((stream) => ({ stream, partition: Number(stream.slice(data.name.length + 1)), ...(data.statistics[stream] ?? { waits: true }) }));
    return h("div", null, data.deleting ? deletion(data.name, namespace) : keyFigures(data, sums),
      section(data.deleting ? "Partitions that are left" : "Partitions",
        rows.length ? sortable(`topic ${namespace} ${data.name}`, `${counted(rows.length, "partition")}. The headings sort them.`, PARTITIONS, rows, (one) => partitionRow(one, namespace), { text: "Partition", down: false })
          : empty("No partition is left", "Only the name of the topic is still stored.")),
      h("p", { class: "quiet" }, RATES, " The figures of the topic are sums over its partitions."));
  },
};
