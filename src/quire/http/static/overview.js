import { get } from "/ui/api.js";
import { facts, h, link, section } from "/ui/dom.js";
import { bytes, count, counted, milliseconds, rate, seconds } from "/ui/format.js";

const OLD_S = 5;
const SIGNS = { bad: "✗ Wrong: ", warn: "! Soon: ", note: "Note: " };

export const problemList = (problems) => h("ul", { class: "problems" }, problems.map((one) =>
  h("li", { class: one.severity }, h("p", null, h("strong", null, SIGNS[one.severity]), one.what),
    one.risk ? h("p", null, "At risk: ", one.risk) : "",
    one.doing ? h("p", null, "Being done: ", one.doing) : "",
    one.next ? h("p", null, "What to do: ", one.next.startsWith("quire ") ? h("code", null, one.next) : one.next) : "")));

/** Return the age of the bookies' disk space figures, if they are not current. */
export const spaceAge = (age) => age === null || age === undefined ? h("small", null, "not known yet")
  : age >= OLD_S ? h("small", null, `as of ${seconds(age)} ago`) : "";

export const overview = {
  title: () => "Overview",
  load: (where, signal) => get("/api/v1/quire/overview", {}, signal),
  render(data) {
    const { bookies, rates, autorecovery } = data;
    return h("div", null,
      section("What is wrong", data.problems.length ? problemList(data.problems)
        : h("p", { class: "alert good" }, "✓ No problems were found")),
      section("Bookies", facts([
        ["Writable", count(bookies.writable)],
        ["Read-only", count(bookies["read-only"])],
        ["Gone", count(bookies.gone)],
        ["Free space", [bytes(data.free_bytes), " ", h("small", null, `of ${bytes(data.total_bytes)}`), " ", spaceAge(data.space_age_s)]],
      ])),
      section("Current load", rates.bookies ? facts([
        ["Entries added", rate(rates.adds_per_s)],
        ["Bytes added", rate(rates.add_bytes_per_s, "B")],
        ["Entries read", rate(rates.reads_per_s)],
        ["Bytes read", rate(rates.read_bytes_per_s, "B")],
        ["Add latency, p50", milliseconds(rates.add_p50_ms)],
        ["Add latency, p99", milliseconds(rates.add_p99_ms)],
        ["Read latency, p99", milliseconds(rates.read_p99_ms)],
        ["Disk sync latency, p99", milliseconds(rates.sync_p99_ms)],
      ]) : h("p", { class: "quiet" }, "No bookie reports its rates. To see them, start the bookies with ", h("code", null, "--http HOST:PORT"), "."),
      h("p", { class: "quiet" }, rates.bookies ? `Rates are sums over ${counted(rates.bookies, "bookie")}, and count every replica. Latencies are those of the slowest bookie in the last minute or two.` : "")),
      section("Autorecovery", facts([
        ["State", autorecovery.enabled ? "on" : "switched off"],
        ["Auditor", autorecovery.auditor ?? "none"],
        ["Under-replicated ledgers", (autorecovery.marked_whole ? "" : "at least ") + count(autorecovery.marked)],
        ["Being repaired", count(autorecovery.locked)],
        ["Repair failed", count(autorecovery.failing)],
        ["Wait for a lost bookie", seconds(autorecovery.delay_s)],
      ]), h("p", null, link("Repair and jobs", "work"), ` (running in all processes: ${count(data.running.length)})`)),
      h("p", { class: "quiet" }, `Cluster ${data.instance_id}, metadata ${data.metadata}`));
  },
};
