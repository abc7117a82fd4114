// Repair and jobs: what autorecovery does, which ledgers lack replicas, and the jobs of all processes.

import { QUESTIONS, button } from "/ui/parts/actions.js";
import { ask, get } from "/ui/parts/api.js";
import { command, empty, SIGNS, tiles } from "/ui/parts/controls.js";
import { accessNote } from "/ui/parts/dialogs.js";
import { coded, h, link, section, table } from "/ui/parts/dom.js";
import { count, counted, rate, seconds, time } from "/ui/parts/format.js";
import { copyTable, elsewhereTable, jobTable, pausedTable, progressBar } from "/ui/parts/jobs.js";

function keyFigures({ enabled, auditor, auditor_age_s: age, marked, marked_whole: whole, locked, failing, delay_s: delay }) {
  return tiles([
    { name: "Autorecovery", value: enabled ? "on" : "switched off", below: enabled ? "in the whole cluster" : "nothing is repaired", kind: enabled ? "" : "warn" },
    { name: "Auditor", value: auditor ?? "none", below: auditor ? (age === null ? "" : `for ${seconds(age)}`) : "nobody looks for lost bookies", kind: auditor ? "" : "warn" },
    { name: "Under-replicated ledgers", value: (whole ? "" : "at least ") + count(marked), below: enabled && auditor ? `${count(locked)} being repaired` : "nobody looks for them", kind: marked ? "warn" : "" },
    { name: "Repair failed", value: count(failing), below: failing ? "the reasons are below" : "for no ledger", kind: failing ? "bad" : "" },
    { name: "Wait for a lost bookie", value: seconds(delay), below: "before its ledgers are copied" },
  ]);
}

/** Say what was repaired in the last day, which explains why autorecovery was busy. */
const repaired = (found) => (found ?? []).map((one) => h("p", { class: "quiet" }, `Repaired lately by ${one.by}: ${counted(one.ledgers, "ledger")} (`,
  one.ledgers > one.last.length ? "the last: " : "", one.last.map((id, at) => [at ? ", " : "", link(`${id}`, "ledger", [id])]), ")",
  one.replicas.length ? [" that lacked copies on ", one.replicas.map((bookie, at) => [at ? ", " : "", link(bookie, "bookie", [bookie])])] : "",
  `, ${counted(one.entries, "entry")} copied, the last at ${time(one.at_ms)}.`));

function repairProgress(repair) {
  if (!repair) return "";
  const left = repair.left_s === null ? "" : `, about ${seconds(repair.left_s)} left`;
  const speed = repair.ledgers_per_s ? `, ${rate(repair.ledgers_per_s * 60).replace("/s", "")} each minute` : "";
  return h("div", { class: "card repair" }, progressBar("Repair of the marked ledgers", repair.ledgers_done / repair.ledgers,
    `${count(repair.ledgers_done)} of ${counted(repair.ledgers, "ledger")} repaired${speed}${left}`));
}

/** Name the bookies that are gone or do not answer: what is to be done about them is elsewhere. The box has the colour
 * of the worst of their problems. */
function bookiesAway(away) {
  if (!away.length) return "";
  const kind = ["bad", "warn", "note"].find((one) => away.some((bookie) => (bookie.severity || "note") === one));
  const sign = SIGNS[kind] ? `${SIGNS[kind]} ` : "";
  const names = (state) => away.filter((one) => (one.state === "gone") === (state === "gone"))
    .map((one, at) => [at ? ", " : "", link(one.id, "bookie", [one.id])]);
  const [gone, silent] = [names("gone"), names("silent")];
  const sentence = (found, one, many) => (found.length ? h("p", null, `${sign}${found.length === 1 ? "Bookie " : "Bookies "}`, found, found.length === 1 ? ` ${one}.` : ` ${many}.`) : "");
  return h("div", { class: `alert ${kind}` }, sentence(silent, "does not answer", "do not answer"), sentence(gone, "is gone", "are gone"),
    h("p", null, "What to do: ", h("a", { href: "#/" }, "see the overview"), ". It says which ledgers lack copies and what to type."));
}

export const work = {
  title: () => "Repair and jobs",
  load: (where, signal) => get("/api/v1/quire/work", {}, signal),
  oldSince: (data) => data.old_since_ms ?? null,
  render(data, where, act) {
    const { autorecovery } = data;
    const turn = (enabled) => () => ask("PUT", "/api/v1/autorecovery/status", { query: { enabled } });
    const marked = data.marked.map((one) => [
      link(`${one.ledger}`, "ledger", [one.ledger]), one.replicas.map((bookie, at) => [at ? ", " : "", link(bookie, "bookie", [bookie])]),
      one.age_s === null ? "–" : `${seconds(one.age_s)} ago`, coded(one.why),
    ]);
    return h("div", null, bookiesAway(data.bookies_away ?? []),
      section("Autorecovery", keyFigures(autorecovery), repairProgress(data.repair), repaired(autorecovery.repaired),
        h("div", { class: "row-buttons" },
          autorecovery.enabled ? "" : [button("Switch autorecovery on", "Switch autorecovery on", turn(true), act, QUESTIONS.autorecoveryOn), " "],
          button("Look for lost bookies now", "Look for lost bookies now", () => ask("PUT", "/api/v1/autorecovery/trigger_audit"), act, QUESTIONS.audit), " ",
          button("Rebalance", "Rebalance the cluster", () => ask("PUT", "/api/v1/quire/rebalance"), act, QUESTIONS.rebalance), " ",
          autorecovery.enabled ? button("Switch autorecovery off", "Switch autorecovery off", turn(false), act, QUESTIONS.autorecoveryOff) : ""),
        accessNote(),
        h("p", { class: "quiet" }, "These buttons affect the whole cluster. While autorecovery is switched off, nothing is repaired."),
        autorecovery.auditor ? "" : command("quire autorecovery start")),
      section("Under-replicated ledgers", marked.length ? table(
        marked.length < autorecovery.marked ? `The first ${marked.length} of ${autorecovery.marked}` : "All of them",
        [["Ledger", ""], ["Missing on", ""], ["Mark last changed", ""], ["Why not repaired yet", ""]], marked)
        : autorecovery.enabled && autorecovery.auditor ? empty("Every ledger has all its replicas", "No ledger is marked for repair.")
          : empty("No ledger is marked for repair", "But nobody looks for lost bookies, so ledgers may lack replicas although none is marked.")),
      section("Jobs of this server", data.jobs.length ? jobTable("Newest first", data.jobs, act)
        : empty("There are no jobs", "The page of a bookie has buttons that start one: recover and decommission.")),
      data.elsewhere.length ? section("Jobs of other processes", elsewhereTable("As these processes report them", data.elsewhere, act)) : "",
      data.paused.length ? section("Paused jobs of all processes", pausedTable("Paused until somebody resumes them", data.paused, act)) : "",
      (data.copies ?? []).length ? section("Continuous copies of streams", copyTable("From and to other clusters, as their processes report them", data.copies),
        h("p", { class: "quiet" }, "A copy whose process was killed stays here. The overview says what to type.")) : "",
      h("p", { class: "quiet below-note" }, "A paused job finishes the ledgers that it works on, and then waits. The work of a cancelled job is not undone: start the same job again, and it continues from there."));
  },
};
