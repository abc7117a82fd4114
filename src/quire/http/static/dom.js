// All elements are created here. Data becomes text, never HTML.

export function h(name, properties, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const mark = (kind, text) => h("span", { class: `mark ${kind}` }, text);

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
 * cell is the heading of the row. */
export function table(caption, columns, rows, kind = "") {
  const head = columns.map(([text, type]) => h("th", { scope: "col", class: type || null }, text));
  const body = rows.map((cells) => h("tr", null, cells.map((cell, at) =>
    at === 0 ? h("th", { scope: "row" }, cell) : h("td", { class: columns[at][1] || null }, cell))));
  return scrolling(caption, h("table", { class: kind || null }, h("caption", null, caption),
    h("thead", null, h("tr", null, head)), h("tbody", null, body)));
}

/** Return a region that scrolls its content, also with the keyboard, if it is wider than the screen. */
export function scrolling(name, content) {
  return h("div", { class: "scroll", role: "region", "aria-label": name, tabindex: 0 }, content);
}

/** Return a list of names and values. */
export const facts = (pairs) => h("dl", { class: "facts" },
  pairs.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));

export const section = (title, ...content) => h("section", null, h("h2", null, title), content);
