// All elements are created here. Data becomes text, never HTML.

/** Return an element. A property that begins with "on" is a listener, and `style` is an object of
 * CSS properties: the content security policy forbids style attributes, but not the CSSOM. */
export function h(name, properties, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [one, of] of Object.entries(value)) element.style.setProperty(one, of);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** Return an icon of icons.svg. It is decoration: the text beside it says the same. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `/ui/icons.svg#${name}`);
  svg.append(use);
  return svg;
}

/** What stands in place of an unknown value. */
export const NONE = "–";

export const mark = (kind, text) => h("span", { class: `mark ${kind}`.trim() }, text);

/** Return a link to a page, with its parts escaped. */
export function link(text, page, parts = [], query = {}) {
  return h("a", { href: address(page, parts, query) }, text);
}

export function address(page, parts = [], query = {}) {
  const path = ["#", page, ...parts.map((one) => encodeURIComponent(one))].join("/");
  const search = new URLSearchParams(query).toString();
  return search ? `${path}?${search}` : path;
}

/** Return a table. A column is [heading, "number" or ""]. A row is a list of cells, and the first
 * cell is the heading of the row. On a small screen, each row becomes a block. */
export function table(caption, columns, rows, kind = "rows") {
  const head = columns.map(([text, type]) => h("th", { scope: "col", role: "columnheader", class: type || null }, text));
  return scrolling(caption, whole(caption, kind, head, columns.map(([text, type]) => ({ text, type })), rows));
}

function whole(caption, kind, head, columns, rows) {
  // The roles are those that the elements have anyway. Browsers drop them where the style sheet
  // turns rows into blocks.
  const body = rows.map((cells) => h("tr", { role: "row" }, cells.map((cell, at) => at === 0
    ? h("th", { scope: "row", role: "rowheader" }, cell)
    : h("td", { role: "cell", class: [columns[at].type, cell === NONE ? "unknown" : ""].filter(Boolean).join(" ") || null, "data-label": columns[at].text || null }, h("div", { class: "cell" }, cell)))));
  return h("table", { class: kind || null, role: "table" }, h("caption", null, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)), h("tbody", { role: "rowgroup" }, body));
}

/** The chosen order of each sortable table, by its key. It survives the refresh of a page. */
const orders = new Map();

/** Return the caption of a table whose headings sort `what`. A small screen shows "Sort by" instead of
 * headings, and leaves out the second sentence. */
export const sorts = (text, what = "this page") => ({ text, more: ` The headings sort ${what}.` });

/** Return a table whose headings are buttons that sort it. `caption` is a text, or what `sorts` returns.
 *
 * A column is { text, type, by }: `type` is "number" or nothing, and `by` returns the value of a row
 * that the column sorts by. A column without `by` cannot be sorted. `cells` returns the cells of a
 * row. `first` is the order at the beginning: { text, down }. If `pick` is given, the server sorts:
 * the rows stay as they are, and a press calls `pick({ text, down })`. Missing values come last. */
export function sortable(key, caption, columns, rows, cells, first, pick) {
  const place = h("div");
  const { text: name, more } = typeof caption === "string" ? { text: caption, more: "" } : caption;
  const words = more ? [name, h("span", { class: "sorting" }, more)] : name;
  const draw = (focus) => {
    const order = pick ? first : orders.get(key) ?? first;
    const column = columns.find((one) => one.text === order?.text);
    const shown = pick || !column?.by ? rows : sorted(rows, column.by, order.down);
    const head = columns.map((one) => {
      const here = one === column && one.by;
      const press = () => {
        const next = { text: one.text, down: here ? !order.down : one.type === "number" };
        if (pick) return pick(next);
        orders.set(key, next);
        return draw(one.text);
      };
      return h("th", { scope: "col", role: "columnheader", class: one.type || null, "aria-sort": here ? (order.down ? "descending" : "ascending") : null },
        one.by ? h("button", { type: "button", class: "sort", id: `sort-${key}-${one.text}`, onclick: press }, one.text) : one.text);
    });
    place.replaceChildren(scrolling(name, whole(words, "rows sortable", head, columns, shown.map(cells))));
    if (focus) document.getElementById(`sort-${key}-${focus}`)?.focus();
  };
  draw(null);
  return place;
}

function sorted(rows, by, down) {
  const missing = (value) => value === null || value === undefined;
  const sign = down ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [left, right] = [by(one), by(other)];
    if (missing(left) || missing(right)) return missing(left) - missing(right);
    if (typeof left === "string") return sign * left.localeCompare(right, undefined, { numeric: true });
    return left < right ? -sign : left > right ? sign : 0;
  });
}

/** Return a region that scrolls its content, also with the keyboard, if it is wider than the screen. */
export function scrolling(name, content) {
  return h("div", { class: "scroll", role: "region", "aria-label": name, tabindex: 0 }, content);
}

/** Return a list of names and values, for details. */
export const facts = (pairs) => h("dl", { class: "facts" },
  pairs.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));

export const section = (title, ...content) => h("section", null, h("h2", null, title), content);

/** Return the parts of a text, of which those between backticks are code elements. */
export const coded = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", null, part) : part));
