// A chart of values over time: uPlot, with a legend that shows the values under the cursor, and with
// a table for those who do not see the lines.

import { h, scrolling } from "/ui/parts/dom.js";
import { bytes, clock, count, milliseconds, percent, rate, short } from "/ui/parts/format.js";
import { colour, onTheme } from "/ui/parts/theme.js";

const { uPlot } = window;

const HEIGHT = 170;
const TABLE_ROWS_MAX = 60;
const DAY_S = 86400;
const COLOURS = 8;
/** A time without values is shaded from this many steps on, and says so if it is this wide. */
const GAP_STEPS = 3;
const GAP_WORDS_PX = 128;
const FILL_ALPHA = 0.12;
/** The dashes of lines that often lie upon the first one, which shows between them. */
const DASH = [7, 5];
/** How the values of a chart are written: beside the lines, and on the axis. */
const UNITS = {
  rate: { text: (value) => rate(value), axis: (value) => short(value), floor: 1 },
  bytes: { text: (value) => rate(value, "B"), axis: (value) => bytes(value), floor: 1000 },
  size: { text: bytes, axis: bytes, floor: 1000 },
  ms: { text: milliseconds, axis: (value) => `${short(value)} ms`, floor: 1 },
  share: { text: percent, axis: (value) => `${Math.round(value * 100)} %`, most: 1 },
  count: { text: (value) => count(value === null || value === undefined ? value : Math.round(value)), axis: short, floor: 4, whole: true },
};

/** The charts of the page that is shown, by their keys. A refresh gives them new data, so that the
 * cursor and hidden lines stay as they are. */
const shown = new Map();

/** Return a chart. The same key returns the same element until another page is shown.
 *
 * @param key the name of the chart on this page
 * @param given { title, unit, times, series, range, nothing, overlap }: `times` are Unix times in seconds,
 *   ascending; `series` is a list of { name, values }, where a missing value is null and becomes a gap;
 *   `range` is [from, to] in seconds; `nothing` says why there may be no data; `unit` is a key of UNITS;
 *   with `overlap`, lines after the first are dashed
 */
export function chart(key, given) {
  const one = shown.get(key) ?? new Chart(key);
  shown.set(key, one);
  one.update(given);
  return one.element;
}

/** Remove all charts. The page that is shown next creates its own. */
export function forgetCharts() {
  for (const one of shown.values()) one.remove();
  shown.clear();
}

class Chart {
  constructor(key) {
    this.key = key;
    this.plot = null;
    this.hidden = new Set();
    this.heading = h("h3", { id: `chart-${key}` });
    this.at = h("span", { class: "at" });
    this.legend = h("ul", { class: "legend" });
    this.nothing = h("div", { class: "nothing", hidden: true });
    this.said = h("span", { class: "hidden-text", role: "status" });
    this.area = h("div", { id: `plot-${key}`, class: "plot", role: "img", tabindex: 0, onkeydown: (event) => this.move(event), onblur: () => this.blurred() }, this.nothing);
    this.rows = h("div");
    this.details = h("details", { ontoggle: () => this.drawTable() }, h("summary", { "aria-label": "Values as a table" }, "Table"), this.rows);
    this.element = h("figure", { class: "chart", role: "group", "aria-labelledby": `chart-${key}` },
      h("figcaption", null, this.heading, this.at), this.legend, this.area, this.said, this.details);
    this.resized = new ResizeObserver(() => this.fit());
    this.resized.observe(this.area);
    this.unlisten = onTheme(() => this.plot?.redraw(false));
  }

  remove() {
    this.resized.disconnect();
    this.unlisten();
    this.plot?.destroy();
  }

  update(given) {
    const names = given.series.map((one) => one.name).join("\n");
    const changed = names !== this.names || given.unit !== this.given?.unit;
    this.given = given;
    this.names = names;
    this.unit = UNITS[given.unit];
    this.data = [given.times, ...given.series.map((one) => one.values)];
    /** The places of the times at which there is a value. */
    this.known = given.times.map((_, at) => at).filter((at) => given.series.some((one) => (one.values[at] ?? null) !== null));
    this.heading.textContent = given.title;
    this.details.querySelector("summary").setAttribute("aria-label", `${given.title}: values as a table`);
    if (changed) {
      this.plot?.destroy();
      this.plot = null;
      this.drawLegend();
    }
    if (this.plot) this.plot.setData(this.data);
    else this.fit();
    const none = given.series.every((one) => one.values.every((value) => value === null));
    this.nothing.textContent = none ? given.nothing ?? "No data in this range" : "";
    this.nothing.hidden = !none;
    this.area.setAttribute("aria-label", this.summary(none));
    this.showValues();
    if (this.details.open) this.drawTable();
  }

  /** Create the plot once its width is known, and keep it as wide as its place. */
  fit() {
    const width = Math.floor(this.area.clientWidth);
    if (!width) return;
    if (this.plot) {
      if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
      return;
    }
    this.plot = new uPlot(this.options(width), this.data, this.area);
  }

  options(width) {
    const { series } = this.given;
    const axis = { stroke: () => colour("--quiet"), font: "11px system-ui, sans-serif", ticks: { show: false } };
    const grid = { stroke: () => colour("--line"), width: 1 };
    const single = series.length === 1;
    return {
      width, height: HEIGHT, padding: [8, 20, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false, sync: { key: "quire", setSeries: false }, points: { size: 7 } },
      hooks: { setCursor: [() => this.showValues()], drawAxes: [(plot) => this.shade(plot)] },
      scales: {
        x: { time: true, range: () => this.given.range ?? this.reach() },
        y: { range: (plot, low, high) => [0, this.unit.most ?? Math.max((high ?? 0) * 1.08, this.unit.floor)] },
      },
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 26, values: (plot, splits) => this.times(splits) },
        { ...axis, grid, space: 34, size: 58, incrs: this.unit.whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7] : undefined,
          values: (plot, splits) => splits.map((value) => this.unit.axis(value)) },
      ],
      series: [{}, ...series.map((one, at) => ({
        label: one.name, width: 1.6, show: !this.hidden.has(one.name),
        stroke: () => colour(`--series-${(at % COLOURS) + 1}`),
        dash: at && this.given.overlap ? DASH : undefined,
        fill: single ? () => faint(colour(`--series-${(at % COLOURS) + 1}`)) : undefined,
        points: { show: false, size: 4, filter: (plot, index) => alone(this.data[index]) }, spanGaps: false,
      }))],
    };
  }

  /** Shade the times without a value, so that they do not look like a value of zero. */
  shade(plot) {
    const { times } = this.given;
    const [from, to] = this.given.range ?? this.reach();
    const least = GAP_STEPS * (times[1] - times[0]);
    const known = this.known.map((at) => times[at]);
    if (!known.length || !(least > 0)) return;
    const { ctx, bbox } = plot;
    const place = (s) => Math.max(bbox.left, Math.min(bbox.left + bbox.width, plot.valToPos(s, "x", true)));
    ctx.save();
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.font = `${11 * uPlot.pxRatio}px system-ui, sans-serif`;
    [from, ...known, to].forEach((end, at, all) => {
      if (!at || end - all[at - 1] <= least) return;
      const [left, right] = [place(all[at - 1]), place(end)];
      ctx.fillStyle = colour("--sunken");
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      const words = at === 1 ? `no value before ${this.times([end])}` : at === all.length - 1 ? `no value since ${this.times([all[at - 1]])}` : "";
      ctx.fillStyle = colour("--quiet");
      if (right - left > GAP_WORDS_PX * uPlot.pxRatio) ctx.fillText(words, (left + right) / 2, bbox.top + bbox.height / 2);
    });
    ctx.restore();
  }

  reach() {
    const { times } = this.given;
    return times.length ? [times[0], times.at(-1)] : [0, 1];
  }

  get dated() {
    const [from, to] = this.given.range ?? this.reach();
    return to - from > DAY_S;
  }

  times(splits) {
    return splits.map((s) => clock(s, { dated: this.dated, precise: false }));
  }

  drawLegend() {
    this.values = this.given.series.map(() => h("span", { class: "value" }));
    this.when = h("li", { class: "at" });
    this.legend.replaceChildren(...this.given.series.map((one, at) => {
      const content = [h("span", { class: "swatch", style: { "--swatch": `var(--series-${(at % COLOURS) + 1})` } }), one.name, " ", this.values[at]];
      const press = (event) => {
        const show = this.hidden.has(one.name);
        if (show) this.hidden.delete(one.name);
        else this.hidden.add(one.name);
        event.currentTarget.setAttribute("aria-pressed", show);
        this.plot?.setSeries(at + 1, { show });
      };
      return h("li", null, h("button", { type: "button", id: `line-${this.key}-${at}`, "aria-pressed": !this.hidden.has(one.name),
        title: this.given.series.length > 1 ? "Show or hide this line" : null, onclick: press }, content));
    }), this.when);
  }

  /** Write the values at the cursor beside the names; without a cursor, the newest ones that are known. The newest
   * sample may still be missing. */
  showValues() {
    const { times, series } = this.given;
    const under = this.plot?.cursor.idx ?? null;
    const at = under ?? this.known.at(-1) ?? times.length - 1;
    series.forEach((one, index) => { this.values[index].textContent = this.unit.text(one.values[at]); });
    const said = this.known.length ? clock(times[at], { dated: this.dated }) : "";
    this.at.textContent = under === null ? "" : said;
    this.when.textContent = under !== null ? "" : at === times.length - 1 && said ? "now" : said && `at ${said}`;
  }

  /** Move the cursor with the arrow keys. */
  move(event) {
    const { times, series } = this.given;
    const last = times.length - 1;
    const at = this.plot?.cursor.idx ?? last;
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last, Escape: null }[event.key];
    if (next === undefined || last < 0 || !this.plot) return;
    event.preventDefault();
    if (next === null) return this.leave();
    const index = Math.max(0, Math.min(last, next));
    this.plot.setCursor({ left: this.plot.valToPos(times[index], "x"), top: 0 });
    this.said.textContent = `${clock(times[index], { dated: this.dated })}: ${series.map((one) => `${one.name} ${this.unit.text(one.values[index])}`).join(", ")}`;
  }

  /** Remove the cursor if the focus has moved to another element. A refresh of the page takes the
   * focus away, and gives it back before the check runs. */
  blurred() {
    queueMicrotask(() => { if (document.activeElement !== this.area) this.leave(); });
  }

  leave() {
    this.plot?.setCursor({ left: -10, top: -10 });
    this.said.textContent = "";
  }

  /** Return what the chart shows, in words. */
  summary(none) {
    const { title, times, series } = this.given;
    if (none) return `${title}: ${this.nothing.textContent}`;
    const said = series.map((one) => {
      const known = one.values.filter((value) => value !== null && value !== undefined);
      if (!known.length) return `${one.name}: no data`;
      const gaps = one.values.filter((value, at) => value === null && at > 0 && one.values[at - 1] !== null).length;
      const [least, most] = known.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
      return `${one.name}: last ${this.unit.text(known.at(-1))}, from ${this.unit.text(least)} to ${this.unit.text(most)}${gaps ? `, ${gaps === 1 ? "with a gap" : `with ${gaps} gaps`}` : ""}`;
    });
    return `${title}, ${clock(times[0], { dated: this.dated })} to ${clock(times.at(-1), { dated: this.dated })}. ${said.join(". ")}. The arrow keys read single values`;
  }

  drawTable() {
    if (!this.details.open) return;
    const { title, times, series } = this.given;
    const step = Math.max(1, Math.ceil(times.length / TABLE_ROWS_MAX));
    const rows = [];
    for (let at = times.length - 1; at >= 0; at -= step) {
      rows.push(h("tr", null, h("th", { scope: "row" }, clock(times[at], { dated: this.dated })), series.map((one) => h("td", { class: "number" }, this.unit.text(one.values[at])))));
    }
    this.rows.replaceChildren(scrolling(`${title}: values`, h("table", null, h("caption", null, step > 1 ? `One of every ${step} values, newest first` : "Newest first"),
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Time"), series.map((one) => h("th", { scope: "col", class: "number" }, one.name)))),
      h("tbody", null, rows))));
  }
}

/** Return the places of values between two gaps: a line needs two points, so they would be invisible. */
function alone(values) {
  const missing = (at) => values[at] === null || values[at] === undefined;
  const places = [];
  for (let at = 0; at < values.length; at += 1) if (!missing(at) && missing(at - 1) && missing(at + 1)) places.push(at);
  return places.length ? places : null;
}

const faint = (value) => value.replace(/^rgb\((.*)\)$/, (all, parts) => `rgb(${parts.replaceAll(",", "")} / ${FILL_ALPHA})`);
