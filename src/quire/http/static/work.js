import { QUESTIONS, button } from "/ui/actions.js";
import { ask, get } from "/ui/api.js";
import { accessNote } from "/ui/dialogs.js";
import { facts, h, link, mark, section, table } from "/ui/dom.js";
import { bytes, count, counted, seconds, time } from "/ui/format.js";

const JOBS = { running: "note", done: "good", failed: "bad", cancelled: "warn" };

function progress(job) {
  if (!job.ledgers && !job.ledgers_done && !job.bytes && job.state === "running") return job.step || "starting";
  const what = job.step ? `${job.step}: ` : "";
  const text = `${what}${count(job.ledgers_done)} of ${counted(job.ledgers, "ledger")}, ${bytes(job.bytes_done)} of ${bytes(job.bytes)}`;
  return [h("progress", { max: Math.max(job.bytes, 1), value: job.state === "done" ? Math.max(job.bytes, 1) : Math.min(job.bytes_done, job.bytes), "aria-label": `job ${job.id}` }), " ", text,
    job.error ? h("p", { class: "bad" }, `${job.error.what}. ${job.error.remedy}`) : ""];
}

const change = (what, { kind, target }) => () => ask("PUT", `/api/v1/quire/${what}`, { body: { kind, target } });
const pause = (job, act) => button("Pause", `Pause ${job.kind} ${job.target}`, change("pause", job), act);
const resume = (job, act) => button("Resume", `Resume ${job.kind} ${job.target}`, change("resume", job), act);

export const work = {
  title: () => "Repair and jobs",
  load: (where, signal) => get("/api/v1/quire/work", {}, signal),
  oldSince: (data) => data.old_since_ms ?? null,
  render(data, where, act) {
    const { autorecovery } = data;
    const turn = (enabled) => () => ask("PUT", "/api/v1/autorecovery/status", { query: { enabled } });
    const jobs = data.jobs.map((job) => [
      `${job.id}: ${job.kind} ${job.target}`, job.paused ? mark("warn", "paused") : mark(JOBS[job.state], job.state), progress(job), time(job.started_ms),
      job.state === "running" ? [job.paused ? resume(job, act) : pause(job, act), " ", button("Cancel", `Cancel job ${job.id}`, () => ask("DELETE", `/api/v1/quire/jobs/${job.id}`), act)] : "",
    ]);
    const elsewhere = data.elsewhere.map((one) => [
      `${one.kind} ${one.target}`, one.by, one.paused ? mark("warn", "paused") : mark("note", "running"),
      progress({ ...one, id: `${one.kind} of ${one.by}`, state: "running" }), time(one.started_ms), one.paused ? resume(one, act) : one.pausable ? pause(one, act) : "",
    ]);
    const paused = data.paused.map((one) => [`${one.kind} ${one.target}`, one.by || "–", time(one.at_ms || null), resume(one, act)]);
    const marked = data.marked.map((one) => [
      link(`${one.ledger}`, "ledger", [one.ledger]), one.replicas.join(", ") || "–", one.age_s === null ? "–" : `${seconds(one.age_s)} ago`, one.why,
    ]);
    return h("div", null,
      section("Autorecovery", facts([
        ["State", autorecovery.enabled ? "on" : "paused"],
        ["Auditor", autorecovery.auditor ?? "none"],
        ["Under-replicated ledgers", (autorecovery.marked_whole ? "" : "at least ") + count(autorecovery.marked)],
        ["Being repaired", count(autorecovery.locked)],
        ["Repair failed", count(autorecovery.failing)],
      ]), h("p", null,
        autorecovery.enabled ? button("Pause", "Pause autorecovery", turn(false), act, QUESTIONS.autorecoveryOff) : button("Resume", "Resume autorecovery", turn(true), act, QUESTIONS.autorecoveryOn), " ",
        button("Look for lost bookies now", "Look for lost bookies now", () => ask("PUT", "/api/v1/autorecovery/trigger_audit"), act, QUESTIONS.audit)),
      accessNote(),
      h("p", { class: "quiet" }, "These buttons apply to the whole cluster. While autorecovery is paused, nothing is repaired.")),
      section("Under-replicated ledgers", marked.length ? table(
        marked.length < autorecovery.marked ? `The first ${marked.length} of ${autorecovery.marked}` : "All of them",
        [["Ledger", ""], ["Missing on", ""], ["Mark last changed", ""], ["Why not repaired yet", ""]], marked) : h("p", null, "There are none.")),
      section("Jobs of this server", jobs.length ? table("Newest first",
        [["Job", ""], ["State", ""], ["Progress", ""], ["Started", ""], ["", ""]], jobs)
        : h("p", null, "There are none. Recovering or decommissioning a bookie over HTTP starts one."),
      h("p", null, button("Rebalance", "Rebalance the cluster", () => ask("PUT", "/api/v1/quire/rebalance"), act, QUESTIONS.rebalance))),
      elsewhere.length ? section("Jobs of other processes", table("Jobs that other processes announce",
        [["Job", ""], ["Process", ""], ["State", ""], ["Progress", ""], ["Started", ""], ["", ""]], elsewhere)) : "",
      paused.length ? section("Paused jobs of all processes", table("Paused until somebody resumes them",
        [["Job", ""], ["Paused by", ""], ["Since", ""], ["", ""]], paused)) : "",
      h("p", { class: "quiet" }, "A paused job finishes the ledgers that it works on, and then waits. A cancelled job keeps what it has done: send the same request again, and it continues from there."));
  },
};
