// Jobs: how far they are, how fast, and how long they still take; with buttons that pause, resume and
// cancel them.

import { button } from "/ui/parts/actions.js";
import { ask } from "/ui/parts/api.js";
import { coded, h, mark, table } from "/ui/parts/dom.js";
import { bytes, count, counted, percent, rate, seconds, time } from "/ui/parts/format.js";

const STATES = { running: ["note", "running"], done: ["good", "✓ done"], incomplete: ["warn", "! incomplete"], failed: ["bad", "✗ failed"], cancelled: ["warn", "! cancelled"] };

/** Return the share that is done, from 0 to 1, or null if it is not known. */
function share(job) {
  if (job.remaining) return job.remaining.done / (job.remaining.done + job.remaining.left);
  if (job.state === "done") return 1;
  if (job.bytes) return Math.min(1, job.bytes_done / job.bytes);
  return job.ledgers ? Math.min(1, job.ledgers_done / job.ledgers) : null;
}

/** Return a bar of what is done, with words that say the same. */
export function progressBar(name, done, words) {
  const known = done !== null;
  return h("div", { class: "usage" },
    h("div", { class: "words" }, h("span", null, known ? percent(done) : ""), h("span", { class: "quiet" }, words)),
    h("div", { class: known ? "bar" : "bar waiting", role: "progressbar", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": 100,
      "aria-valuenow": known ? Math.round(done * 100) : null, "aria-valuetext": known ? `${percent(done)}, ${words}` : words },
    h("span", { style: { "--share": known ? done : 0 } })));
}

function amount(job) {
  if (job.remaining) return `${count(job.remaining.done)} of ${counted(job.remaining.done + job.remaining.left, job.remaining.counts.slice(0, -1))}`;
  const parts = [job.ledgers || job.ledgers_done ? `${count(job.ledgers_done)}${job.ledgers ? ` of ${counted(job.ledgers, "ledger")}` : " ledgers"}` : "",
    job.bytes ? `${bytes(job.bytes_done)} of ${bytes(job.bytes)}` : ""];
  return parts.filter(Boolean).join(", ");
}

function progress(job) {
  const running = job.state === "running";
  const words = amount(job) || (running ? job.step || "starting" : "");
  return [running && amount(job) && job.step ? h("p", { class: "step" }, job.step) : "",
    running || job.state === "done" || job.remaining || share(job) ? progressBar(`${job.kind} ${job.target}`, share(job), words) : "",
    job.error ? [h("p", { class: "wrong" }, `${job.error.what}.`), job.error.remedy ? h("p", null, job.error.remedy) : ""] : "",
    job.remaining ? leftOver(job.remaining) : "", job.advice ? h("p", { class: "worst" }, job.advice) : ""];
}

/** Return what an incomplete job did not do, why, and what to do about it. */
function leftOver({ counts, left, reasons, remedy }) {
  return [h("p", { class: "worst" }, `${counted(left, counts.slice(0, -1))} ${left === 1 ? "is" : "are"} left.`),
    h("ul", { class: "reasons" }, reasons.map((one) => h("li", null, one))), h("p", null, coded(remedy))];
}

/** Return the rate of a job in words. */
function pace(job) {
  if (job.bytes_per_s !== null) return rate(job.bytes_per_s, "B");
  return job.ledgers_per_s === null ? "–" : `${rate(job.ledgers_per_s)} ledgers`.replace("/s ledgers", " ledgers/s");
}

const left = (job) => job.state !== "running" ? (job.ended_ms ? `took ${seconds((job.ended_ms - job.started_ms) / 1000)}` : "–")
  : job.paused ? "–" : job.left_s === null ? "not known yet" : `about ${seconds(job.left_s)}`;

const change = (what, { kind, target }) => () => ask("PUT", `/api/v1/quire/${what}`, { body: { kind, target } });
const pause = (job, act) => button("Pause", `Pause ${job.kind} ${job.target}`, change("pause", job), act);
export const resume = (job, act) => button("Resume", `Resume ${job.kind} ${job.target}`, change("resume", job), act);
const cancel = (job, act) => button("Cancel", `Cancel job ${job.id}`, () => ask("DELETE", `/api/v1/quire/jobs/${job.id}`), act, {
  title: `Cancel ${job.kind} ${job.target}?`,
  text: "What the job has copied so far stays copied. If the same job is started again, it continues from there.",
  action: "Cancel the job",
});

const buttons = (...all) => h("div", { class: "row-buttons" }, all);

/** Return a table of the jobs of this process. */
export function jobTable(caption, jobs, act) {
  const columns = [["Job", ""], ["State", ""], ["Progress", ""], ["Rate", "number"], ["Time left", "number"], ["Started", ""], ["", ""]];
  return table(caption, columns, jobs.map((job) => [
    `${job.id}: ${job.kind} ${job.target}`, job.paused ? mark("warn", "! paused") : mark(...STATES[job.state]), progress(job), pace(job), left(job), time(job.started_ms),
    job.state === "running" ? buttons(job.paused ? resume(job, act) : pause(job, act), " ", cancel(job, act)) : "",
  ]), "rows jobs");
}

/** Return a table of the jobs that other processes announce. They can be paused, but not cancelled. */
export function elsewhereTable(caption, jobs, act) {
  const columns = [["Job", ""], ["Process", ""], ["State", ""], ["Progress", ""], ["Rate", "number"], ["Time left", "number"], ["Started", ""], ["", ""]];
  return table(caption, columns, jobs.map((one) => {
    const job = { ...one, state: "running" };
    return [`${job.kind} ${job.target}`, job.by, job.paused ? mark("warn", "! paused") : mark("note", "running"), progress(job), pace(job), left(job), time(job.started_ms),
      job.paused ? buttons(resume(job, act)) : job.pausable ? buttons(pause(job, act)) : ""];
  }), "rows jobs");
}

const COPIES = { running: ["good", "✓ running"], behind: ["warn", "! far behind"], failed: ["warn", "! failed in part"], stopped: ["warn", "! stopped"] };

/** Return how far a copy, or the copy of one stream, is behind. `records` is null if that is unknown. */
function behind({ records, behind_s: oldest, state }) {
  if (records === null || records === undefined) return "not known";
  if (!records) return state === "stopped" ? "none then" : "none";
  return [counted(records, "record"), oldest ? h("small", { class: "quiet second" }, ` the oldest for ${seconds(oldest)}`) : ""];
}

/** Return a table of the continuous copies of streams from and to this cluster. With `here`, each has the `lag` of one stream. */
export function copyTable(caption, copies, here = false) {
  const columns = [["Streams", ""], ["State", ""], ["Not copied", "number"], ["Last report", ""], ["Other cluster", ""], ["Process", ""]];
  return table(caption, columns, copies.map((one) => {
    const from = one.role === "source";
    const lag = here ? { records: one.lag?.records, behind_s: one.lag?.seconds, state: one.state } : one;
    const where = one.source_id === one.target_id ? "this cluster" : from ? one.target : one.source;
    return [`${one.streams === "*" ? "all" : one.streams} of ${from ? one.source_namespace : one.target_namespace}`, mark(...(COPIES[one.state] ?? ["note", one.state])),
      behind(lag), time(one.said_ms), [from ? "to " : "from ", h("span", { class: "mono" }, from ? one.target_namespace : one.source_namespace), " in ", h("span", { class: "mono" }, where)],
      [one.by, h("small", { class: "quiet second" }, ` since ${time(one.since_ms)}`)]];
  }), "rows copies");
}

/** Return a table of the jobs that no process continues until somebody resumes them. */
export const pausedTable = (caption, paused, act) => table(caption, [["Job", ""], ["Paused by", ""], ["Since", ""], ["", ""]],
  paused.map((one) => [`${one.kind} ${one.target}`, one.by || "–", time(one.at_ms || null), buttons(resume(one, act))]));
