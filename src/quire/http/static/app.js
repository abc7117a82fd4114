// The page that is shown, and its regular refresh.

import { access, onAccess, takeToken } from "/ui/access.js";
import { ApiError } from "/ui/api.js";
import { dialogOpen, tokenForm } from "/ui/dialogs.js";
import { h } from "/ui/dom.js";
import { bookies } from "/ui/bookies.js";
import { explain } from "/ui/explain.js";
import { ledger, ledgers } from "/ui/ledgers.js";
import { overview } from "/ui/overview.js";
import { stream, streams } from "/ui/streams.js";
import { work } from "/ui/work.js";

const INTERVAL_MS = 3000;
const INTERVAL_MAX_MS = 60000;
const PAGES = { "": overview, bookies, ledgers, ledger, streams, stream, work, explain };

const main = document.getElementById("main");
const freshness = document.getElementById("freshness");
let view = null;

/** Show the page in the location's hash. A page is an object with the functions title(where),
 * controls(where) (optional), load(where, signal) and render(data, where, act). */
function show() {
  view?.stop();
  takeToken();
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  let parts = [];
  try {
    parts = path.split("/").map(decodeURIComponent);
  } catch {
    parts = [""];
  }
  const name = Object.hasOwn(PAGES, parts[0]) ? parts[0] : "";
  view = new View(PAGES[name], { parts: parts.slice(1), query: new URLSearchParams(search) });
  for (const one of document.querySelectorAll("nav a")) {
    const target = one.getAttribute("href").slice(2);
    const here = target === name || target === `${name}s`;
    if (here) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  view.start();
}

class View {
  constructor(page, where) {
    this.page = page;
    this.where = where;
    this.interval = page.interval ?? INTERVAL_MS;
    this.wait = this.interval;
    this.abort = new AbortController();
    this.shown = null;
    this.timer = null;
    this.loading = false;
  }

  start() {
    const title = this.page.title(this.where);
    document.title = `${title} · Quire`;
    this.alert = h("div", { role: "alert" });
    this.content = h("div", { "aria-busy": "true" }, h("p", { class: "quiet" }, "Loading …"));
    main.replaceChildren(h("h1", { tabindex: -1 }, title), this.alert,
      this.page.controls?.(this.where) ?? "", this.content);
    if (View.moved) main.focus({ preventScroll: true });
    View.moved = true;
    this.refresh();
  }

  stop() {
    clearTimeout(this.timer);
    this.abort.abort();
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
      this.alert.replaceChildren();
      this.fill(data);
      say(`As of ${new Date().toLocaleTimeString()}`);
    } catch (error) {
      if (signal.aborted) return;
      this.wait = Math.min(this.wait * 2, INTERVAL_MAX_MS);
      this.tell(error);
    } finally {
      this.loading = false;
    }
    if (!document.hidden) this.timer = setTimeout(() => this.refresh(), this.wait);
  }

  /** Draw the data if it, or the permission to change something, is another one. The keyboard focus
   * stays where it is. */
  fill(data) {
    const text = access() + JSON.stringify(data, (key, value) => typeof value === "bigint" ? `${value}` : value);
    this.content.setAttribute("aria-busy", "false");
    if (text === this.shown || dialogOpen()) return;
    this.shown = text;
    const key = keyOf(document.activeElement, this.content);
    this.content.replaceChildren(this.page.render(data, this.where, (work) => this.act(work)));
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
    this.refresh();
  }

  tell(error) {
    this.content.setAttribute("aria-busy", "false");
    if (!(error instanceof ApiError)) console.error(error);
    if (!this.shown) this.content.replaceChildren();
    const asking = error.status === 401;
    const form = this.alert.querySelector("form");
    if (form && (asking || form.contains(document.activeElement))) return;  // somebody types the token
    const said = error instanceof ApiError ? error : { message: "An unexpected error happened in this page", remedy: String(error) };
    const stale = this.shown ? " The data below is older." : "";
    this.alert.replaceChildren(h("div", { class: "alert bad" }, h("p", null, `✗ ${said.message}.${stale}`),
      said.remedy ? h("p", null, said.remedy) : "", error.known === false ? h("p", null, "The request may have taken effect.") : ""));
    if (asking) this.alert.append(tokenForm());
    say("");
  }
}

const FOCUSABLE = "a, button, [tabindex], summary";

function keyOf(element, inside) {
  if (!element || !inside.contains(element)) return null;
  return element.id || element.getAttribute("href") || element.getAttribute("aria-label") || null;
}

function say(text) {
  if (freshness.textContent !== text) freshness.textContent = text;
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", show);
onAccess(() => view?.refresh());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) view?.refresh();
});
show();
