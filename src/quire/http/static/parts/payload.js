// Payloads as text, JSON or hexadecimal digits. Whatever the bytes are, they become text nodes.

import { ask } from "/ui/parts/api.js";
import { choice } from "/ui/parts/controls.js";
import { h } from "/ui/parts/dom.js";
import { count, counted } from "/ui/parts/format.js";

const NARROW = "(max-width: 44rem)";
/** Up to this length, JSON stays on one line unless JSON is chosen, so that lists stay short. */
const ONE_LINE_CHARS = 100;
const INDENT = "  ";
const INDENTS_MAX = 40;
const WAYS = [{ value: "auto", text: "Auto" }, { value: "text", text: "Text" }, { value: "json", text: "JSON" }, { value: "hex", text: "Hex" }];

/** The chosen way to show payloads. It holds for all pages of this tab. */
let way = "auto";

/** Return the choice of how payloads are shown, and what `draw` returns for it. */
export function shownAs(draw) {
  const place = h("div");
  const fill = () => place.replaceChildren(...[draw()].flat(Infinity));
  const pick = (value) => {
    way = value;
    fill();
  };
  fill();
  return [h("div", { class: "shown-as" }, choice("as", "Show payloads as", WAYS, way, pick)), place];
}

/** Return a payload of an answer, { bytes, offset, shown_bytes, payload }, in the chosen way: what it
 * is, and the element that shows it. */
export function payload(one, name) {
  const data = Uint8Array.from(atob(one.payload), (char) => char.charCodeAt(0));
  const cut = one.offset > 0 || one.offset + one.shown_bytes < one.bytes;
  const [kind, text] = shown(data, one.offset, cut);
  const part = cut ? `bytes ${count(one.offset)} to ${count(Math.max(one.offset, one.offset + one.shown_bytes - 1))} of ${count(one.bytes)}` : counted(one.bytes, "byte");
  return [one.bytes ? `${kind}, ${part}` : "empty",
    one.bytes ? h("pre", { class: "payload", tabindex: 0, role: "region", "aria-label": `Payload of ${name}` }, text) : ""];
}

/** The widths of the columns of a list of lines. All lines have the same, so that they align. */
const WIDTHS = { position: "7.5rem", entry: "6rem", time: "12.5rem", txid: "9rem", partition: "4.5rem", key: "9rem", size: "5rem", value: "minmax(0, 1fr)" };

/** Return a list of payloads, a line each, which opens to the whole payload.
 *
 * A column is [kind, heading], with a kind of WIDTHS. An item is { id, name, cells, one, more }: its
 * cells are those of all columns but the last, which shows the beginning of the payload `one`, and
 * `more` returns what else belongs to it once it is open. An item that is { element } is shown as it is,
 * such as one that cannot be read. */
export function lines(name, columns, items) {
  const open = new Set();
  const style = { "--lines": columns.map(([kind]) => WIDTHS[kind]).join(" ") };
  const place = h("div");
  const line = (item) => {
    if (item.element) return h("li", { class: "item whole" }, item.element);
    const body = h("div", { class: "item-body" });
    const fill = () => {
      const [kind, element] = payload(item.one, item.name);
      body.replaceChildren(...[item.more(kind), element].flat(Infinity).filter(Boolean));
    };
    const details = h("details", { open: open.has(item.id) }, h("summary", { class: "line", style }, columns.map(([kind, heading], at) => {
      const cell = at < item.cells.length ? item.cells[at] : preview(item.one);
      return h("span", { class: `line-${kind}` }, h("span", { class: "hidden-text" }, `${at ? ", " : ""}${heading} `), cell);
    })), body);
    details.addEventListener("toggle", () => {
      if (details.open === open.has(item.id) && body.childNodes.length) return;
      if (details.open) open.add(item.id);
      else open.delete(item.id);
      if (details.open) fill();
      all.textContent = words();
    });
    if (details.open) fill();
    return h("li", { class: "item" }, details);
  };
  const closed = items.filter((item) => !item.element);
  const words = () => (open.size < closed.length ? "Open all" : "Close all");
  const draw = () => place.replaceChildren(
    h("div", { class: "lines-head", style, "aria-hidden": "true" }, columns.map(([kind, heading]) => h("span", { class: `line-${kind}` }, heading))),
    h("ol", { class: "items lines", "aria-label": name }, items.map(line)));
  const turn = () => {
    const opens = open.size < closed.length;
    open.clear();
    if (opens) closed.forEach((item) => open.add(item.id));
    all.textContent = words();
    draw();
  };
  const all = h("button", { type: "button", class: "all-lines", onclick: turn }, words());
  const pick = (value) => {
    way = value;
    draw();
  };
  draw();
  return [h("div", { class: "shown-as" }, closed.length ? all : "", choice("as", "Show payloads as", WAYS, way, pick)), place];
}

const PREVIEW_BYTES = 300;

/** Return the beginning of a payload as nodes for one line. */
function preview(one) {
  if (!one.bytes) return h("span", { class: "quiet" }, "empty");
  const data = Uint8Array.from(atob(one.payload.slice(0, PREVIEW_BYTES / 3 * 4)), (char) => char.charCodeAt(0));
  const text = way === "hex" ? null : decoded(data, data.length < one.bytes);
  if (text === null || (way === "auto" && mostlyUnseen(text))) return [...data.subarray(0, PREVIEW_BYTES / 3)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return visible(text.replace(/[ \t\r\n]+/g, " "));
}

const INLINE_CHARS = 200;

/** Return a short payload of an answer, such as a key, as nodes for one line: as text, or in
 * hexadecimal digits if it is no text. */
export function inline(one) {
  if (!one.bytes) return [h("span", { class: "quiet" }, "empty")];
  const data = Uint8Array.from(atob(one.payload), (char) => char.charCodeAt(0)).subarray(0, INLINE_CHARS);
  const cut = data.length < one.bytes;
  const text = way === "hex" ? null : decoded(data, cut);
  const digits = () => [...data].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return [h("span", { class: "mono" }, text === null ? digits() : visible(text)), cut ? `… (${counted(one.bytes, "byte")})` : ""];
}

function shown(data, offset, cut) {
  if (way === "hex") return ["hex", hex(data, offset)];
  const text = decoded(data, cut);
  if (text === null) {
    if (way === "auto") return ["not text", hex(data, offset)];
    return ["not valid UTF-8; wrong bytes are shown as �", visible(new TextDecoder().decode(data))];
  }
  if (way === "auto" && mostlyUnseen(text)) return ["mostly controls", hex(data, offset)];
  if (way === "text") return ["text", visible(text)];
  if (way === "auto" && text.length <= ONE_LINE_CHARS && !text.includes("\n") && json(text) !== null) return [/^\s*[[{]/.test(text) ? "JSON" : "text", visible(text)];
  const formatted = json(text);
  if (formatted !== null && (way === "json" || /^\s*[[{]/.test(text))) return ["JSON", visible(formatted)];
  return [way === "json" ? (cut ? "not whole, so not shown as JSON" : "not JSON") : "text", visible(text)];
}

/** Return UTF-8 as text, or null if it is none. Of a part of a payload, the first and the last
 * character may be incomplete. */
function decoded(data, cut) {
  const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  for (const [begin, end] of cut ? edges(data) : [[0, data.length]]) {
    try {
      return strict.decode(data.subarray(begin, end));
    } catch {
      // try without the bytes of an incomplete character
    }
  }
  return null;
}

function edges(data) {
  const ways = [];
  for (let begin = 0; begin < 4; begin += 1) {
    for (let less = 0; less < 4; less += 1) {
      if (begin + less <= data.length) ways.push([begin, data.length - less]);
    }
  }
  return ways;
}

const UNSEEN_SHARE = 0.2;
/** The number of marked places in one payload. Later ones have no mark, because each is an element. */
const UNSEEN_NODES_MAX = 1000;
const CONTROLS = "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");

// Characters that cannot be seen, or that would change how their neighbours look: controls other
// than line breaks and tabs, marks of the writing direction, and characters without width.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]+/gu;

const nameOf = (char) => CONTROLS[char.codePointAt(0)] ?? `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** Return whether so many characters cannot be seen that hexadecimal digits say more. */
function mostlyUnseen(text) {
  let unseen = 0;
  for (const [run] of text.matchAll(HIDDEN)) unseen += run.length;
  return unseen > text.length * UNSEEN_SHARE;
}

/** Return the text as nodes, with names in place of characters that cannot be seen. */
export function visible(text) {
  const nodes = [];
  let behind = 0;
  for (const { 0: run, index } of text.matchAll(HIDDEN)) {
    const names = [...run].map(nameOf).join(" ");
    nodes.push(text.slice(behind, index), nodes.length < UNSEEN_NODES_MAX ? h("span", { class: "unseen" }, names) : names);
    behind = index + run.length;
  }
  nodes.push(text.slice(behind));
  return nodes;
}

/** Return JSON with line breaks and indents, or null if the text is none. Numbers and strings stay
 * exactly as they are written: a number may be too large for JavaScript. */
export function json(text) {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const out = [];
  let depth = 0;
  const line = () => `\n${INDENT.repeat(Math.min(depth, INDENTS_MAX))}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/gs) ?? [];
  for (let at = 0; at < tokens.length; at += 1) {
    const token = tokens[at];
    if (token === "{" || token === "[") {
      const next = tokens[at + 1];
      if (next === "}" || next === "]") {
        out.push(token + next);
        at += 1;
        continue;
      }
      depth += 1;
      out.push(token, line());
    } else if (token === "}" || token === "]") {
      depth -= 1;
      out.push(line(), token);
    } else if (token === ",") out.push(token, line());
    else if (token === ":") out.push(": ");
    else out.push(token);
  }
  return out.join("");
}

function hex(data, offset) {
  const narrow = matchMedia(NARROW).matches;
  const width = narrow ? 8 : 16;
  const lines = [];
  for (let at = 0; at < data.length; at += width) {
    const row = [...data.subarray(at, at + width)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(3 * width - 1);
    const chars = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${(offset + at).toString(16).padStart(narrow ? 5 : 8, "0")}  ${digits}  ${chars}`);
  }
  return h("span", { class: "hex" }, lines.join("\n"));
}

// -- what cannot be read, and what may not be read ----------------------------------------------

/** Return an error of the server about one entry, with what is wrong at each bookie. */
export const failure = (error) => h("div", { class: "alert bad" }, h("p", null, `✗ ${error.what}`),
  Object.entries(error.causes).map(([bookie, why]) => h("p", null, h("strong", null, bookie), `: ${why}`)),
  error.remedy ? h("p", null, error.remedy) : "");

/** The passwords that were typed, by what they open. They are kept in memory only. */
const passwords = new Map();

export const passwordOf = (key) => (passwords.has(key) ? { password: passwords.get(key) } : {});

/** Ask for payloads. A wrong password is an answer of its own: { locked } with the reason. */
export async function askFor(path, body, signal) {
  try {
    return await ask("POST", path, { body, signal, reads: true });
  } catch (error) {
    if (error.kind !== "UnauthorizedError") throw error;
    return { locked: error.message };
  }
}

/** Return a form for the password of a ledger. It is sent in the body of a request only. */
export function passwordForm(key, data, act) {
  const input = h("input", { id: "ledger-password", type: "password", autocomplete: "off", required: true, maxlength: 1024 });
  const submit = (event) => {
    event.preventDefault();
    passwords.set(key, input.value);
    act(async () => {});
  };
  return h("div", null, h("div", { class: "alert warn" }, h("p", null, `! ${data.locked[0].toUpperCase()}${data.locked.slice(1)}.`),
    h("p", null, "The password is sent in the body of each request, and is forgotten when this page is loaded again.")),
  h("form", { onsubmit: submit }, h("div", null, h("label", { for: "ledger-password" }, "Password of the ledger"), input),
    h("button", { class: "primary" }, "Open")));
}
