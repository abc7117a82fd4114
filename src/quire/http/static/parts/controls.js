// The parts that pages are made of: key figures, bars, code boxes, tabs, choices, empty states.

import { h, icon } from "/ui/parts/dom.js";
import { bytes, percent } from "/ui/parts/format.js";

const COPIED_MS = 2000;

/** Return a value with its unit in smaller letters: "12.5 MB/s", "3 of 4". */
export function figure(value) {
  if (value instanceof Node || Array.isArray(value)) return h("span", { class: "figure" }, value);
  const [, number, unit] = /^([\d.,]*\d)?(.*)$/s.exec(String(value));
  if (!number) return h("span", { class: unit.length > 1 ? "figure words" : "figure" }, unit);
  return h("span", { class: "figure" }, number, unit ? h("small", null, unit) : "");
}

/** Return key figures. Each is { name, value, below, kind }: `below` is a remark in small letters,
 * and `kind` is "warn" or "bad" if the value is not as it should be. Other kinds look like none. */
export const tiles = (all) => h("dl", { class: "tiles" }, all.filter(Boolean).map((one) =>
  h("div", { class: ["warn", "bad"].includes(one.kind) ? `tile ${one.kind}` : "tile" }, h("dt", null, one.name), h("dd", null, figure(one.value)),
    one.below ? h("dd", { class: "below" }, one.below) : "")));

/** The sign of each kind of state. */
export const SIGNS = { bad: "✗", warn: "!", good: "✓" };

/** The marks of the states of a ledger. */
export const LEDGER = { OPEN: ["note", "open"], IN_RECOVERY: ["warn", "! in recovery"], CLOSED: ["", "closed"], lost: ["bad", "✗ does not exist"], unreadable: ["bad", "✗ metadata unreadable"] };

/** Return the kind of a bookie's state: "good", or the severity of the problem that the bookie has. So no page shows
 * it worse than that problem. */
export const stateKind = (one) => (one.state === "writable" && one.answers !== false ? "good" : one.severity || "note");

/** Return a word with the sign of its kind, if it has one. */
export const signed = (kind, text) => (SIGNS[kind] ? `${SIGNS[kind]} ${text}` : text);

/** Return a bar of the share that is used, with words that say the same. `name` says what is used, for screen readers.
 * `kind` is "warn" if the server says that this is nearly full or full, and otherwise "". */
export function usage(name, used, total, kind = "") {
  const share = total > 0 ? Math.min(1, Number(used) / Number(total)) : 0;
  const sign = signed(kind, share >= 1 ? "full" : `${percent(share)} used`);
  return h("div", { class: "usage" },
    h("div", { class: "words" }, h("span", { class: kind || null }, sign), h("span", { class: "quiet" }, `${bytes(total - used)} free`)),
    h("div", { class: `bar ${kind}`.trim(), role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": 100,
      "aria-valuenow": Math.round(share * 100), "aria-valuetext": `${sign}, ${bytes(total - used)} free of ${bytes(total)}` },
    h("span", { style: { "--share": share } })));
}

/** A word that means nothing but itself to a shell. */
const SAFE = /^[\w./:@%+=,-]+$/;

/** Return a word of a command, quoted for a shell if it needs quotes. */
export const quoted = (word) => (SAFE.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** Return a command with a name as its argument. A name that begins with a dash comes last, after
 *  `--`, so that it is not taken for an option. `options` are quoted already. */
export const commandWith = (text, name, options = "") =>
  (name.startsWith("-") ? [text, options, "--", quoted(name)] : [text, quoted(name), options]).filter(Boolean).join(" ");

/** A command of at least this many characters has its button below it on a small screen. */
const LONG_CHARS = 60;

/** Return the words of a command. A line never ends within a word that fits into a line. */
const unbroken = (text) => text.split(/(\s+)/).map((part) => (part.trim() ? h("span", null, part) : part));

/** Return a command in a box, with a button that copies it. */
export function command(text) {
  const code = h("code", null, unbroken(text));
  const words = h("span", { role: "status" }, "Copy");
  const press = async () => {
    words.textContent = await copy(text, code) ? "Copied" : "Press Ctrl-C";
    setTimeout(() => { words.textContent = "Copy"; }, COPIED_MS);
  };
  return h("div", { class: text.length >= LONG_CHARS ? "command long" : "command" }, code,
    h("button", { type: "button", "aria-label": `Copy the command ${text}`, onclick: press }, icon("copy"), words));
}

/** A command after a colon or after "or", up to the end of its sentence. */
const COMMANDS = /(: |, or )((?:quire|curl|openssl|smartctl|timedatectl|sudo|export|echo) .*?)(?=\. [A-Z]|, or quire |$)/gs;

/** A first sentence that is nothing but a command. */
const LEADING = /^(?:quire|curl) (?:(?! continues )(?!\. [A-Z]).)*(?=\. [A-Z])/s;

/** Words that come before the command of one more bookie. */
const REPEATED = /^(?:For|On the machine of) /;
/** The number of commands of further bookies that are shown at once. */
const REPEATED_SHOWN = 2;
/** The folded commands that are open, by the first of them. They stay open when a page refreshes. */
const unfolded = new Set();

/** Return the parts of advice in which commands that repeat another one for many bookies are folded. */
function folded(parts) {
  const shown = [];
  for (let at = 0; at < parts.length;) {
    let end = at;
    while (REPEATED.test(parts[end]?.textContent ?? "") && parts[end + 1]?.classList.contains("command")) end += 2;
    const first = at + 2 * REPEATED_SHOWN;
    if (end - first < 4) {
      shown.push(...parts.slice(at, end + 1));
      at = end + 1;
      continue;
    }
    const number = (end - first) / 2;
    if (parts[end]?.textContent.endsWith("do the same.")) end += 1;
    const key = parts[first + 1].textContent;
    const details = h("details", { class: "folded", open: unfolded.has(key) }, h("summary", { id: `commands-${key}` }, `${number} more commands`), parts.slice(first, end));
    details.addEventListener("toggle", () => (details.open ? unfolded.add(key) : unfolded.delete(key)));
    shown.push(...parts.slice(at, first), details);
    at = end;
  }
  return shown;
}

/** Words with which another way begins, after the first command. */
const ALTERNATIVE = /^(?:If |or:)/;

/** Return advice as words and commands. A command after a colon is in a box of its own. So is a text,
 * or a first sentence, that is nothing but a command. `label` is before the first words. What comes after the first
 * command and begins with "If" or "or" is quiet, so that the first command is the one that is seen. */
export function advice(text, label = "What to do: ") {
  const found = [];
  const say = (words) => {
    const whole = `${found.length ? "" : label}${words}`.trim();
    // The end of a list of commands is a paragraph of its own.
    for (const part of whole.split(/(?<=, do the same\.) /)) if (part) found.push(h("p", null, part));
  };
  if (/^(?:quire|curl) (?!.*(?:\. | continues ))/s.test(text)) {
    say("");
    return [...found, command(text)];
  }
  let from = 0;
  const [first] = LEADING.exec(text) ?? [];
  if (first) {
    say("");
    found.push(command(first));
    from = first.length;
  }
  for (const match of text.matchAll(COMMANDS)) {
    const words = text.slice(from, match.index).replace(/^\. /, "");
    say(match[1] === ": " ? `${words}:` : words ? `${words}, or:` : "or:");
    found.push(command(match[2]));
    from = match.index + match[0].length;
  }
  const rest = text.slice(from).replace(/^\. /, "");
  if (rest) say(`${rest}${/[.:!?]$/.test(rest) ? "" : "."}`);
  const one = found.findIndex((part) => part.classList.contains("command"));
  const other = found.findIndex((part, at) => one !== -1 && at > one && ALTERNATIVE.test(part.textContent));
  if (other !== -1) for (const part of found.slice(other)) part.classList.add("alternative");
  return folded(found);
}

/** Copy a text, and return whether that worked. A page that was loaded without TLS from another
 * machine has no clipboard: then the text is selected, so that the keyboard can copy it. */
async function copy(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return false;
  }
}

/** Return what stands in place of a list that has nothing in it. */
export const empty = (title, text = "", what = "") => h("div", { class: "empty" },
  h("p", { class: "title" }, title), text ? h("p", null, text) : "", what ? command(what) : "");

/** Return a choice of one of several values: { value, text } each. It is a group of radio buttons. */
export function choice(key, name, all, chosen, pick) {
  return h("fieldset", { class: "choice" }, h("legend", null, name), all.map(({ value, text }) => h("label", null,
    h("input", { type: "radio", name: key, id: `${key}-${value}`, value, checked: value === chosen, onchange: () => pick(value) }),
    h("span", null, text))));
}

/** The chosen tab of each group, by its key. It survives the refresh of a page. */
const chosenTabs = new Map();

/** Return tabs: { id, title, content } each, where `content` is a function that returns elements. */
export function tabs(key, name, all) {
  const panel = h("div", { role: "tabpanel", id: `${key}-panel`, tabindex: 0 });
  const choose = (id, focus) => {
    chosenTabs.set(key, id);
    for (const button of buttons) {
      const here = button.id === `${key}-${id}`;
      button.setAttribute("aria-selected", here);
      button.tabIndex = here ? 0 : -1;
      if (here && focus) button.focus();
    }
    panel.setAttribute("aria-labelledby", `${key}-${id}`);
    panel.replaceChildren(...[all.find((one) => one.id === id).content()].flat(Infinity));
  };
  const move = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = all.findIndex((one) => one.id === chosenTabs.get(key));
    choose(all[(at + by + all.length) % all.length].id, true);
  };
  const buttons = all.map((one) => h("button", { type: "button", role: "tab", id: `${key}-${one.id}`, "aria-controls": `${key}-panel`, onclick: () => choose(one.id) }, one.title));
  const before = chosenTabs.get(key);
  choose(all.some((one) => one.id === before) ? before : all[0].id);
  return h("div", { class: "tabs" }, h("div", { role: "tablist", "aria-label": name, onkeydown: move }, buttons), panel);
}
