import { ask, get } from "/ui/api.js";
import { facts, h, link, mark, section, table } from "/ui/dom.js";
import { bytes, count, seconds, time } from "/ui/format.js";

const JOBS = { running: "note", done: "good", failed: "bad", cancelled: "warn" };

function progress(job) {
  if (!job.ledgers && !job.ledgers_done && !job.bytes && job.state === "running") return job.step || "begins";
  const what = job.step ? `${job.step}: ` : "";
  const text = `${what}${count(job.ledgers_done)} of ${count(job.ledgers)} ledgers, ${bytes(job.bytes_done)} of ${bytes(job.bytes)}`;
  return [h("progress", { max: Math.max(job.bytes, 1), value: job.state === "done" ? Math.max(job.bytes, 1) : Math.min(job.bytes_done, job.bytes), "aria-label": `job ${job.id}` }), " ", text,
    job.error ? h("p", { class: "bad" }, `${job.error.what}. ${job.error.remedy}`) : ""];
}

/** A button that cannot be pressed twice. */
function button(text, label, work, act) {
  const press = (event) => {
    event.currentTarget.disabled = true;
    const pressed = event.currentTarget;
    act(work).finally(() => { pressed.disabled = false; });
  };
  return h("button", { type: "button", "aria-label": label, onclick: press }, text);
}

const change = (what, { kind, target }) => () => ask("PUT", `/api/v1/quire/${what}`, { body: { kind, target } });
const pause = (job, act) => button("Pause", `Pause ${job.kind} ${job.target}`, change("pause", job), act);
const goOn = (job, act) => button("Go on", `Let ${job.kind} ${job.target} go on`, change("resume", job), act);

export const work = {
  title: () => "Repair and jobs",
  load: (where, signal) => get("/api/v1/quire/work", {}, signal),
  render(data, where, act) {
    const { autorecovery } = data;
    const turn = (enabled) => () => ask("PUT", "/api/v1/autorecovery/status", { query: { enabled } });
    const jobs = data.jobs.map((job) => [
      `${job.id}: ${job.kind} ${job.target}`, job.paused ? mark("warn", "paused") : mark(JOBS[job.state], job.state), progress(job), time(job.started_ms),
      job.state === "running" ? [job.paused ? goOn(job, act) : pause(job, act), " ", button("Cancel", `Cancel job ${job.id}`, () => ask("DELETE", `/api/v1/quire/jobs/${job.id}`), act)] : "",
    ]);
    const elsewhere = data.elsewhere.map((one) => [
      `${one.kind} ${one.target}`, one.by, one.paused ? mark("warn", "paused") : mark("note", "running"),
      progress({ ...one, id: `${one.kind} of ${one.by}`, state: "running" }), time(one.started_ms), one.paused ? goOn(one, act) : one.pausable ? pause(one, act) : "",
    ]);
    const paused = data.paused.map((one) => [`${one.kind} ${one.target}`, one.by || "–", time(one.at_ms || null), goOn(one, act)]);
    const marked = data.marked.map((one) => [
      link(`${one.ledger}`, "ledger", [one.ledger]), one.replicas.join(", ") || "–", seconds(one.age_s), one.why,
    ]);
    return h("div", null,
      section("Autorecovery", facts([
        ["State", autorecovery.enabled ? "on" : "paused"],
        ["Auditor", autorecovery.auditor ?? "nobody"],
        ["Ledgers that lack replicas", (autorecovery.marked_whole ? "" : "at least ") + count(autorecovery.marked)],
        ["Worked on", count(autorecovery.locked)],
        ["Failing", count(autorecovery.failing)],
      ]), h("p", null,
        autorecovery.enabled ? button("Pause", "Pause autorecovery", turn(false), act) : button("Go on", "Let autorecovery go on", turn(true), act), " ",
        button("Look for lost bookies now", "Look for lost bookies now", () => ask("PUT", "/api/v1/autorecovery/trigger_audit"), act)),
      h("p", { class: "quiet" }, "For the whole cluster. Paused, nothing is repaired until somebody lets it go on.")),
      section("Ledgers that lack replicas", marked.length ? table(
        marked.length < autorecovery.marked ? `${marked.length} of ${autorecovery.marked}` : "All of them",
        [["Ledger", ""], ["Lacking on", ""], ["For", ""], ["Why still", ""]], marked) : h("p", null, "There are none.")),
      section("Jobs of this server", jobs.length ? table("The newest first",
        [["Job", ""], ["State", ""], ["Progress", ""], ["Begun", ""], ["", ""]], jobs)
        : h("p", null, "There are none. Recovering and decommissioning a bookie over HTTP makes one.")),
      elsewhere.length ? section("Jobs of other processes", table("That say so themselves",
        [["Job", ""], ["By", ""], ["State", ""], ["Progress", ""], ["Begun", ""], ["", ""]], elsewhere)) : "",
      paused.length ? section("Paused, in whichever process", table("They go on when somebody lets them",
        [["Job", ""], ["By", ""], ["Since", ""], ["", ""]], paused)) : "",
      h("p", { class: "quiet" }, "A job that is paused ends the ledgers that it is at, and waits. A job that is cancelled keeps what it has done, and the same request again goes on from there."));
  },
};
