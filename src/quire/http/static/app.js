// The page that is shown, and its regular refresh.

import { access, onAccess, takeToken } from "/ui/parts/access.js";
import { noteStore } from "/ui/parts/actions.js";
import { ApiError } from "/ui/parts/api.js";
import { forgetCharts } from "/ui/parts/chart.js";
import { advice, empty } from "/ui/parts/controls.js";
import { TOKEN_PLACE, dialogOpen, tokenForm } from "/ui/parts/dialogs.js";
import { h } from "/ui/parts/dom.js";
import { clock, seconds, zone } from "/ui/parts/format.js";
import { crumbs } from "/ui/parts/lists.js";
import { checkProblems, drawProblems } from "/ui/parts/problems.js";
import { bookie } from "/ui/pages/bookie.js";
import { bookies } from "/ui/pages/bookies.js";
import { configuration } from "/ui/pages/configuration.js";
import { dataset, datasets, machine, machines, object, objects } from "/ui/pages/contents.js";
import { ledger, ledgers } from "/ui/pages/ledgers.js";
import { overview } from "/ui/pages/overview.js";
import { stream, streams } from "/ui/pages/streams.js";
import { topic } from "/ui/pages/topic.js";
import { topology } from "/ui/pages/topology.js";
import { work } from "/ui/pages/work.js";

/** The page of an address that no page has. */
const nothing = {
  title: () => "No such page",
  interval: null,
  load: () => Promise.resolve({}),
  render: () => empty("This address has no page", ["It may be mistyped, or of another version. ", h("a", { href: "#/" }, "To the overview")]),
};

const INTERVAL_MS = 3000;
const INTERVAL_MAX_MS = 60000;
const AGE_INTERVAL_MS = 1000;
/** The time between two looks whether the number of problems in the frame is due or old. */
const PROBLEMS_INTERVAL_MS = 5000;
/** The statuses of a page that mean that the server would not say the number of problems either: it does not answer,
 * or it needs the token. */
const SILENT = [0, 401];
/** The pages by the first part of their address. `explain` was a page of its own once. */
const PAGES = { "": overview, explain: overview, bookies, bookie, topology, configuration, ledgers, ledger, streams, stream, topic,
  objects, object, datasets, dataset, machines, machine, work };
/** The entry of the menu of each page that has none of its own. */
const ENTRIES = { explain: "", bookie: "bookies", ledger: "ledgers", stream: "streams", topic: "streams", object: "objects", dataset: "datasets", machine: "machines" };

const main = document.getElementById("main");
const freshness = document.getElementById("freshness");
const menu = document.getElementById("menu");
const entries = document.getElementById("pages");
let view = null;

/** Show the page in the location's hash. A page is an object with the functions title(where),
 * crumbs(where) (optional: links to what is above it), controls(where, refresh) (optional),
 * load(where, signal) and render(data, where, act). Fields for
 * input belong to the controls, because the content is replaced at each refresh. `interval` is the
 * time between two refreshes; a page with null is loaded once. `at` returns another page for these
 * parts of the address, such as the entries of a ledger. A page that gets
 * the last known state of something sets `oldSince`, a function of its data that returns the Unix
 * time of that state in milliseconds, or null. */
function show() {
  view?.stop();
  takeToken();
  forgetCharts();
  openMenu(false);
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  let parts = [];
  try {
    parts = path.split("/").map(decodeURIComponent);
  } catch {
    parts = [path];
  }
  const [name] = parts;
  const page = Object.hasOwn(PAGES, name) ? PAGES[name] : nothing;
  view = new View(page.at?.(parts.slice(1)) ?? page, { parts: parts.slice(1), query: new URLSearchParams(search) });
  const entry = ENTRIES[name] ?? name;
  for (const one of entries.querySelectorAll("a")) {
    if (one.getAttribute("href").slice(2) === entry) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  view.start();
}

class View {
  constructor(page, where) {
    this.page = page;
    this.where = where;
    this.interval = page.interval === undefined ? INTERVAL_MS : page.interval;
    this.wait = this.interval;
    this.abort = new AbortController();
    this.shown = null;
    this.timer = null;
    this.ages = null;
    this.asOf = null;
    this.loading = false;
    this.answered = false;
  }

  start() {
    const title = this.page.title(this.where);
    document.title = `${title} · Quire`;
    this.alert = h("div", { role: "alert" });
    this.age = h("p", { class: "age" });
    this.content = h("div", { "aria-busy": "true" }, h("p", { class: "quiet" }, "Loading …"));
    const controls = this.page.controls?.(this.where, () => this.reload()) ?? "";
    const above = this.page.crumbs?.(this.where) ?? [];
    main.replaceChildren(above.length ? crumbs(above) : "", h("div", { class: "head" }, h("h1", { tabindex: -1 }, title), controls), this.alert, this.age, this.content);
    if (View.moved) main.focus({ preventScroll: true });
    View.moved = true;
    this.refresh();
  }

  stop() {
    clearTimeout(this.timer);
    clearInterval(this.ages);
    this.abort.abort();
  }

  /** Load the data again now, because a control has changed what to load. */
  reload() {
    this.again = this.loading;
    this.refresh();
  }

  async refresh() {
    clearTimeout(this.timer);
    if (this.loading) return;
    this.loading = true;
    const signal = this.abort.signal;
    try {
      const data = await this.page.load(this.where, signal);
      if (signal.aborted) return;
      this.wait = this.interval;
      this.answered = true;
      main.querySelector(".head form")?.removeAttribute("hidden");
      this.current(data);
      this.fill(data);
      checkProblems();
    } catch (error) {
      if (signal.aborted) return;
      this.answered = !SILENT.includes(error.status);
      this.wait = Math.min(this.wait * 2, INTERVAL_MAX_MS);
      this.tell(error);
      if (this.answered) checkProblems();
    } finally {
      this.loading = false;
    }
    if (this.again) {
      this.again = false;
      this.refresh();
    } else if (!document.hidden && this.interval !== null) this.timer = setTimeout(() => this.refresh(), this.wait);
  }

  /** Note the age of the data: it is of now, unless the server says that it is older. */
  current(data) {
    const since = this.page.oldSince?.(data) ?? null;
    this.asOf = since ?? Date.now();
    this.alert.replaceChildren();
    noteStore(since !== null);
    this.markOld(since !== null, since === null ? null : data.metadata_away_since_ms ?? null);
  }

  /** Mark what is shown as old, with its age, or as current. If the metadata store is away, the time since then is
   * shown instead, which is also that of the first problem. The age is not part of the alert, so that screen readers
   * do not read it every second. */
  markOld(old, awayMs = null) {
    clearInterval(this.ages);
    this.content.classList.toggle("old-data", old);
    say(`As of ${clock(this.asOf / 1000)}`, old);
    if (!old) return this.age.replaceChildren();
    const age = h("strong");
    const tick = () => { age.textContent = seconds((Date.now() - (awayMs ?? this.asOf)) / 1000); };
    tick();
    const at = clock(this.asOf / 1000);
    this.age.replaceChildren(...(awayMs === null ? ["! Last known state, of ", age, ` ago (${at}). It may have changed since.`]
      : ["! The metadata store has not answered for ", age, `. This is the last known state, of ${at}. It may have changed since.`]));
    this.ages = setInterval(tick, AGE_INTERVAL_MS);
  }

  /** Draw the data if it, or the permission to change something, is another one. The keyboard focus
   * stays where it is. While text is selected, for example to copy it, or a dialog is open, the page
   * stays as it is. */
  fill(data) {
    const text = access() + JSON.stringify(data, (key, value) => typeof value === "bigint" ? `${value}` : value);
    this.content.setAttribute("aria-busy", "false");
    if (text === this.shown || dialogOpen()) return;
    const selected = getSelection();
    if (this.shown && !selected.isCollapsed && this.content.contains(selected.anchorNode)) return;
    const key = keyOf(document.activeElement, this.content);
    const scrolled = scrolls(this.content);
    this.content.replaceChildren(this.page.render(data, this.where, (work) => this.act(work)));
    this.shown = text;
    for (const one of this.content.querySelectorAll(SCROLLING)) {
      const before = scrolled.get(one.getAttribute("aria-label"));
      if (before) Object.assign(one, before);
    }
    if (key) [...this.content.querySelectorAll(FOCUSABLE)].find((one) => keyOf(one, this.content) === key)?.focus({ preventScroll: true });
  }

  /** Do the work of a button, then refresh the page. */
  async act(work) {
    try {
      await work();
    } catch (error) {
      this.tell(error);
      return;
    }
    this.reload();
  }

  /** Show an error. What was shown before stays, and is marked as old with its age. */
  tell(error) {
    this.content.setAttribute("aria-busy", "false");
    if (!(error instanceof ApiError)) console.error(error);
    const away = error.kind === "MetadataUnavailableError" && !this.shown;
    if (!this.shown) this.content.replaceChildren();
    main.querySelector(".head form")?.toggleAttribute("hidden", away);
    const asking = error.status === 401;
    const form = this.alert.querySelector("form");
    if (form && (asking || form.contains(document.activeElement))) return;  // somebody types the token
    const said = error instanceof ApiError ? error : { message: "An unexpected error happened in this page", remedy: String(error) };
    const old = this.shown ? h("p", null, "The data below is older.") : "";
    this.alert.replaceChildren(h("div", { class: "alert bad" }, h("p", null, `✗ ${sentence(said.message)}`), old,
      asking ? h("p", null, TOKEN_PLACE) : said.remedy ? (said.kind === "MetadataUnavailableError" ? advice(said.remedy) : h("p", null, sentence(said.remedy))) : "", error.known === false ? h("p", null, "The request may have taken effect.") : "",
      away && location.hash.length > 2 ? h("p", null, "The ", h("a", { href: "#/" }, "overview"), " has the last known state.") : ""));
    if (asking) this.alert.append(tokenForm());
    if (!this.shown) return say("No data", true);
    this.markOld(true);
  }
}

const FOCUSABLE = "a, button, input, select, [tabindex], summary";
const SCROLLING = ".scroll[aria-label]";

/** Return how far each scrolling region is scrolled, by its name. */
function scrolls(inside) {
  return new Map([...inside.querySelectorAll(SCROLLING)].map((one) =>
    [one.getAttribute("aria-label"), { scrollLeft: one.scrollLeft, scrollTop: one.scrollTop }]));
}

function keyOf(element, inside) {
  if (!element || !inside.contains(element)) return null;
  return element.id || element.getAttribute("href") || element.getAttribute("aria-label") || null;
}

/** Return a text as a sentence, which begins with a capital and ends with a full stop. */
const sentence = (text) => `${text.slice(0, 1).toUpperCase()}${text.slice(1)}${/[.:!?]$/.test(text) ? "" : "."}`;

function say(text, old = false) {
  freshness.classList.toggle("old", old);
  const [at, where] = /\d$/.test(text) ? [text, ` ${zone()}`] : [text, ""];
  if (freshness.textContent === `${at}${where}`) return;
  freshness.title = where && `All times are of the time zone ${zone()}`;
  freshness.replaceChildren(at, h("span", { class: "zone" }, where));
}

/** Open or close the menu of a small screen. */
function openMenu(open) {
  menu.setAttribute("aria-expanded", open);
  entries.classList.toggle("open", open);
}

menu.addEventListener("click", () => openMenu(menu.getAttribute("aria-expanded") !== "true"));

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", show);
setInterval(() => (view?.answered && !document.hidden ? checkProblems() : drawProblems()), PROBLEMS_INTERVAL_MS);
onAccess(() => view?.refresh());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && view?.interval !== null) view?.refresh();
});
show();
