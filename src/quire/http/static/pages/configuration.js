// The configuration of a process, with the default and the origin of each value, and the settings of
// the cluster.

import { get } from "/ui/parts/api.js";
import { choice, command, empty, tabs } from "/ui/parts/controls.js";
import { address, coded, h, mark, sortable, table } from "/ui/parts/dom.js";
import { bytes, counted, seconds } from "/ui/parts/format.js";

const BOOKIES = 1000;
const [KEYS, SETTINGS] = ["Keys of a process", "Settings of the cluster"];
/** The settings that hold something back for the whole cluster while they are not as usual. */
const HOLDING = new Set(["autorecovery", "garbage collection", "bookies being decommissioned", "paused jobs"]);
const TOP_LEVEL = "top level";
/** The filter of the keys. It survives the refresh of the page. */
const wanted = { text: "", which: "all", table: "" };
/** Draws the keys again for another filter. */
let redraw = () => {};

/** Return a value with its size or time in words: "67108864 (67.1 MB)". */
function value(one, text) {
  if (text === null) return h("span", { class: "quiet" }, "not set");
  const number = Number(text);
  const words = text === "" || Number.isNaN(number) ? "" : one.unit.startsWith("bytes") && number >= 1000 ? bytes(number) : one.unit === "seconds" && number >= 120 ? seconds(number) : "";
  return [h("code", null, text), words ? h("small", { class: "quiet" }, ` ${words}`) : ""];
}

const COLUMNS = [{ text: "Key", by: (one) => one.key }, { text: "Value", by: (one) => one.value }, { text: "Default", by: (one) => one.default }, { text: "From", by: (one) => one.origin }];

const cells = (one) => [
  [h("span", { class: "mono" }, one.key), one.changed ? [" ", mark("note", "changed")] : "", h("p", { class: "meaning" }, coded(one.meaning))],
  [value(one, one.value), one.applies ? "" : h("p", { class: "meaning" }, "has no effect, because this process does not use its table")],
  value(one, one.default), one.changed ? h("span", { class: "mono" }, one.origin) : h("span", { class: "quiet" }, "default")];

/** Return whether all words of the filter are in these texts. */
function fits(changed, ...texts) {
  const text = texts.join(" ").toLowerCase();
  return wanted.text.toLowerCase().split(/\s+/).every((part) => text.includes(part)) && (wanted.which === "all" || changed);
}

function controls({ parts }) {
  wanted.text = "";
  wanted.which = "all";
  wanted.table = "";
  const text = h("input", { id: "key-part", type: "search", autocomplete: "off", maxlength: 200, oninput: () => { wanted.text = text.value; redraw(); } });
  return h("form", { role: "search", "aria-label": "Filter", onsubmit: (event) => event.preventDefault() },
    h("div", null, h("label", { for: "key-part" }, "Part of a name, value or meaning"), text),
    choice("which", "Which values", [{ value: "all", text: "All" }, { value: "changed", text: "Changed" }], "all", (chosen) => { wanted.which = chosen; redraw(); }));
}

/** Return links to the configuration of this server and of each bookie. */
function processes(bookies, here) {
  const pick = (event) => { location.hash = address("configuration", event.currentTarget.value ? [event.currentTarget.value] : []); };
  return h("div", { class: "process" }, h("label", { for: "process" }, "Process"),
    h("select", { id: "process", onchange: pick }, h("option", { value: "", selected: !here }, "this server"),
      bookies.map((one) => h("option", { value: one.id, selected: one.id === here, disabled: !one.http.length }, one.http.length ? one.id : `${one.id} (no HTTP server)`))));
}

/** Return the table of a key in the configuration file. */
const tableOf = (key) => (key.includes(".") ? key.slice(0, key.lastIndexOf(".")) : TOP_LEVEL);

/** Return a choice of one table of the configuration file, which shortens the list of keys. */
function tablesOf(all) {
  const names = [...new Set(all.map((one) => tableOf(one.key)))];
  const pick = (event) => { wanted.table = event.currentTarget.value; redraw(); };
  return h("div", { class: "process" }, h("label", { for: "key-table" }, "Table"),
    h("select", { id: "key-table", onchange: pick }, h("option", { value: "", selected: !wanted.table }, "all"),
      names.map((name) => h("option", { value: name, selected: name === wanted.table }, name === TOP_LEVEL ? name : `[${name}]`))));
}

const fittingSettings = (all) => all.filter((one) => fits(one.changed, one.name, one.value, one.meaning, one.node, one.command));
const fittingKeys = (all) => all.filter((one) => fits(one.changed, one.key, one.value, one.origin, one.meaning, one.environment) && (!wanted.table || tableOf(one.key) === wanted.table));

/** Say how many things in the other tab match the filter. */
const elsewhere = (found, one, where) => (found ? `${counted(found, one)} in the tab “${where}” ${found === 1 ? "matches" : "match"} the filter.` : "");

function settings(all, keys) {
  const shown = fittingSettings(all);
  if (!shown.length) return empty("No setting matches the filter", elsewhere(fittingKeys(keys).length, "key", KEYS));
  return table("In the metadata store, for every process of the cluster", [["Setting", ""], ["Value", ""], ["Default", ""], ["To change it", ""]], shown.map((one) => [
    [h("span", { class: "name" }, one.name), h("p", { class: "meaning" }, coded(one.meaning)), one.node ? h("p", { class: "meaning mono" }, one.node) : ""],
    one.changed ? h("span", { class: `mark ${HOLDING.has(one.name) ? "warn" : "note"} long` }, one.value) : one.value, one.default || "–", one.command ? command(one.command) : "–"]), "rows settings");
}

function keys(own, cluster) {
  const shown = fittingKeys(own.keys);
  const caption = `${shown.length === own.keys.length ? counted(shown.length, "key") : `${shown.length} of ${counted(own.keys.length, "key")}`}${own.file ? `, file ${own.file}` : ", without a configuration file"}`;
  return shown.length ? sortable("keys", caption, COLUMNS, shown, cells, null) : empty("No key matches the filter", elsewhere(fittingSettings(cluster).length, "setting", SETTINGS));
}

export const configuration = {
  title: ({ parts }) => (parts[0] ? `Configuration of ${parts[0]}` : "Configuration"),
  crumbs: ({ parts }) => (parts[0] ? [["Bookies", address("bookies")], [`Bookie ${parts[0]}`, address("bookie", [parts[0]])]] : []),
  interval: 15000,
  controls,
  async load({ parts }, signal) {
    const [own, cluster, listed] = await Promise.all([
      get("/api/v1/quire/configuration", parts[0] ? { bookie: parts[0] } : {}, signal), get("/api/v1/quire/settings", {}, signal), get("/api/v1/quire/bookies", { limit: BOOKIES }, signal)]);
    return { own, settings: cluster.settings, bookies: listed.bookies, old: cluster.old_since_ms };
  },
  oldSince: (data) => data.old ?? null,
  render({ own, settings: cluster, bookies }, { parts }) {
    const [ofCluster, ofProcess] = [h("div"), h("div", { class: "keys" })];
    redraw = () => {
      ofCluster.replaceChildren(settings(cluster, own.keys));
      ofProcess.replaceChildren(keys(own, cluster));
    };
    redraw();
    return h("div", null, tabs("configuration", "Configuration", [
      { id: "keys", title: KEYS, content: () => [
        h("div", { class: "section-head" }, h("h2", null, `Keys of ${own.process}`), h("div", { class: "section-choices" }, processes(bookies, parts[0]), tablesOf(own.keys))),
        h("p", { class: "quiet" }, "Command-line options override environment variables, which override the configuration file. Passwords, tokens and private keys are in files of their own and are not shown. To see the same in a terminal: ", h("code", null, "quire config show --origin")),
        ofProcess] },
      { id: "settings", title: SETTINGS, content: () => [ofCluster] },
    ]));
  },
};
