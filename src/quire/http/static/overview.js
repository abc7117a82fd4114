// What somebody on call wants to know first: what is wrong, then the key figures, then the rest.

import { get } from "/ui/api.js";
import { command, tiles } from "/ui/controls.js";
import { facts, h, link, section } from "/ui/dom.js";
import { bytes, count, counted, milliseconds, rate, seconds } from "/ui/format.js";
import { idForm } from "/ui/ledgers.js";

const OLD_S = 5;
const SIGNS = { bad: "✗ Wrong: ", warn: "! Soon: ", note: "Note: " };

export const problemList = (problems) => h("ul", { class: "problems" }, problems.map((one) =>
  h("li", { class: one.severity }, h("p", null, h("strong", null, SIGNS[one.severity]), one.what),
    one.risk ? h("p", null, "At risk: ", one.risk) : "",
    one.doing ? h("p", null, "Being done: ", one.doing) : "",
    one.next ? [h("p", null, one.next.startsWith("quire ") ? "What to do:" : `What to do: ${one.next}`), one.next.startsWith("quire ") ? command(one.next) : ""] : "")));

/** Return the age of the bookies' disk space figures, if they are not current. */
export const spaceAge = (age) => age === null || age === undefined ? h("small", null, "not known yet")
  : age >= OLD_S ? h("small", null, `as of ${seconds(age)} ago`) : "";

function keyFigures(data) {
  const { bookies, rates, autorecovery } = data;
  const away = [bookies["read-only"] ? `${count(bookies["read-only"])} read-only` : "", bookies.gone ? `${count(bookies.gone)} gone` : ""].filter(Boolean);
  const all = bookies.writable + bookies["read-only"] + bookies.gone;
  return tiles([
    { name: "Writable bookies", value: `${count(bookies.writable)} of ${count(all)}`, below: away.join(", ") || "all of them", kind: bookies.gone ? "bad" : away.length ? "warn" : "" },
    { name: "Free space", value: data.space_age_s === null ? "–" : bytes(data.free_bytes), below: data.space_age_s === null ? "not known yet" : [`of ${bytes(data.total_bytes)} `, spaceAge(data.space_age_s)] },
    { name: "Under-replicated ledgers", value: (autorecovery.marked_whole ? "" : "at least ") + count(autorecovery.marked), below: `${count(autorecovery.locked)} being repaired`, kind: autorecovery.marked ? "warn" : "" },
    { name: "Autorecovery", value: autorecovery.enabled ? "on" : "switched off", below: autorecovery.auditor ? `auditor ${autorecovery.auditor}` : "no auditor", kind: autorecovery.enabled ? "" : "warn" },
    ...(rates.bookies ? [
      { name: "Entries added", value: rate(rates.adds_per_s), below: rate(rates.add_bytes_per_s, "B") },
      { name: "Entries read", value: rate(rates.reads_per_s), below: rate(rates.read_bytes_per_s, "B") },
      { name: "Add latency, p99", value: milliseconds(rates.add_p99_ms), below: `p50 ${milliseconds(rates.add_p50_ms)}` },
      { name: "Disk sync latency, p99", value: milliseconds(rates.sync_p99_ms), below: `p50 ${milliseconds(rates.sync_p50_ms)}` },
    ] : []),
  ]);
}

export const overview = {
  title: () => "Overview",
  controls: () => idForm("Explain the ledger with this id", "ledger"),
  load: (where, signal) => get("/api/v1/quire/overview", {}, signal),
  render(data) {
    const { rates, autorecovery } = data;
    return h("div", null,
      section("What is wrong", data.problems.length ? problemList(data.problems)
        : h("p", { class: "alert good" }, "✓ No problems were found")),
      section("Key figures", keyFigures(data),
        h("p", { class: "quiet" }, rates.bookies ? `Rates are sums over ${counted(rates.bookies, "bookie")}, and count every replica. Latencies are those of the slowest bookie in the last minute or two.`
          : ["No bookie reports its rates. To see them, start the bookies with ", h("code", null, "--http HOST:PORT"), "."])),
      section("Autorecovery", facts([
        ["State", autorecovery.enabled ? "on" : "switched off"],
        ["Auditor", autorecovery.auditor ?? "none"],
        ["Being repaired", count(autorecovery.locked)],
        ["Repair failed", count(autorecovery.failing)],
        ["Wait for a lost bookie", seconds(autorecovery.delay_s)],
        ["Jobs in all processes", [count(data.running.length), " ", link("Repair and jobs", "work")]],
      ])),
      h("p", { class: "quiet" }, `Cluster ${data.instance_id}, metadata ${data.metadata}`));
  },
};
