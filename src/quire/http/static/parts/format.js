// Numbers, sizes and times as people read them. A dash stands for an unknown value.

import { NONE } from "/ui/parts/dom.js";

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function count(value) {
  return value === null || value === undefined ? NONE : value.toLocaleString("en");
}

/** Return the noun for this count: "entry" or "entries", "copy" or "copies", "ledger" or "ledgers". */
function plural(noun, value) {
  if (value === 1) return noun;
  return /[^aeiou]y$/.test(noun) ? `${noun.slice(0, -1)}ies` : `${noun}s`;
}

/** Return the noun with its count: "1 entry", "2,000 entries". */
export const counted = (value, noun) => `${count(value)} ${plural(noun, value)}`;

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  let at = 0;
  let size = Number(value);
  while (size >= 1000 && at < UNITS.length - 1) [size, at] = [size / 1000, at + 1];
  return `${at && size < 100 ? size.toFixed(1) : Math.round(size)} ${UNITS[at]}`;
}

export function rate(value, unit = "") {
  if (value === null || value === undefined) return NONE;
  if (unit === "B") return `${bytes(value)}/s`;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en")}/s`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  return value < 10 ? `${value.toFixed(2)} ms` : `${Math.round(value)} ms`;
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}

/** Return a share, from 0 to 1, as a percentage. Only what is whole is 100 %. */
export function percent(share) {
  if (share === null || share === undefined) return NONE;
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${share > 0 && share < 0.1 ? (share * 100).toFixed(1) : share >= 1 ? 100 : Math.min(99, Math.round(share * 100))} %`;
}

/** Return a count in few characters, for the axis of a chart: "950", "12k", "1.5M". */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  return value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 2 });
}

/** Return the time of day of a Unix time in seconds, with the date if `dated` is set. */
export function clock(s, { dated = false, precise = true } = {}) {
  const at = new Date(s * 1000);
  const said = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(precise ? { second: "2-digit" } : {}) });
  return dated ? `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${said}` : said;
}

/** Return the short name of the time zone in which the page shows times: "UTC", "CET". */
export const zone = () => new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts().find((one) => one.type === "timeZoneName").value;

/** Return the date of a Unix time in milliseconds: "26 Nov 2026". */
export const date = (ms) => new Date(Number(ms)).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });

/** Return a text of the server with its times, as in its log, in the form that the page uses. */
export const localTimes = (text) => text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g, (found) => time(Date.parse(found)));

/** Return the reason why a directory is full, as a bookie logs it, with sizes as the page shows them. */
export const localSizes = (text) => text.replace(/^(\d+) bytes are free, (\D+)(\d+)(?:(, of which )(\d+)( are set aside))?/, (all, free, words, limit, of = "", held = "", aside = "") =>
  `${bytes(free)} are free, ${words}${bytes(limit)}${of}${held && bytes(held)}${aside}`);

/** Return the date and the time of day, of 24 hours as on the axis of a chart. */
export function time(ms) {
  return ms === null || ms === undefined ? NONE : `${date(ms)}, ${clock(Number(ms) / 1000)}`;
}
