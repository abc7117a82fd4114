// Parts that the pages of lists share: links to pages of a list, tabs that are pages, fields.

import { h } from "/ui/parts/dom.js";

/** Return links to the pages of a list: [text, address] each. Those without an address are left
 * out. */
export const pager = (name, all) => h("nav", { class: "pager", "aria-label": name },
  all.filter(([, to]) => to).map(([text, to]) => h("a", { href: to }, text)));

/** Return links that look like tabs, each to a page of its own: [text, address, whether it is
 * shown]. */
export const pageTabs = (name, all) => h("nav", { class: "page-tabs", "aria-label": name }, h("ul", null,
  all.map(([text, to, here]) => h("li", null, h("a", { href: to, "aria-current": here ? "page" : null }, text)))));

/** Return links to what is above a page, the nearest last: [text, address] each. */
export const crumbs = (all) => h("nav", { class: "crumbs", "aria-label": "Above" }, all.map(([text, to], at) => [at ? "›" : "", h("a", { href: to }, text)]));

/** Return a select field with a label: { field, value }. An option is [value, text]. */
export function selection(id, label, options, chosen) {
  const select = h("select", { id }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  return { field: h("div", null, h("label", { for: id }, label), select), get value() { return select.value; } };
}

/** Return a text field with a label: { field, value }. */
export function textField(id, label, value, more = {}) {
  const input = h("input", { id, autocomplete: "off", maxlength: 200, value: value ?? "", ...more });
  return { field: h("div", null, h("label", { for: id }, label), input), get value() { return input.value.trim(); } };
}
