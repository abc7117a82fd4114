import { get } from "/ui/api.js";
import { address, facts, h, link, mark, section, table } from "/ui/dom.js";
import { bytes, count, counted } from "/ui/format.js";

const PAGE = 100;
const SEGMENTS_DRAWN_MAX = 200;

/** Draw paths as a tree, because a namespace may be below another one. */
function tree(paths) {
  const root = new Map();
  for (const path of paths) {
    let at = root;
    for (const part of path.split("/").filter(Boolean)) {
      if (!at.has(part)) at.set(part, new Map());
      at = at.get(part);
    }
  }
  const known = new Set(paths);
  const list = (nodes, above, kind) => h("ul", { class: kind }, [...nodes].map(([name, below]) => {
    const path = `${above}/${name}`;
    return h("li", null, known.has(path) ? link(name, "streams", [path]) : h("span", null, name),
      below.size ? list(below, path, null) : "");
  }));
  return list(root, "", "tree");
}

function searchForm(namespace, value) {
  const input = h("input", { id: "stream-part", type: "search", autocomplete: "off", maxlength: 200, value });
  const submit = (event) => {
    event.preventDefault();
    location.hash = address("streams", [namespace], input.value ? { search: input.value } : {});
  };
  return h("form", { role: "search", onsubmit: submit },
    h("div", null, h("label", { for: "stream-part" }, "Part of a stream's name"), input), h("button", null, "Search"));
}

export const streams = {
  title: ({ parts }) => (parts[0] ? `Streams of ${parts[0]}` : "Streams"),
  interval: 10000,
  controls: ({ parts, query }) => (parts[0] ? searchForm(parts[0], query.get("search") ?? "") : null),
  load({ parts, query }, signal) {
    if (!parts[0]) return get("/api/v1/quire/namespaces", {}, signal);
    const given = ["search", "after"].filter((name) => query.get(name)).map((name) => [name, query.get(name)]);
    return get("/api/v1/quire/streams", { namespace: parts[0], limit: PAGE, ...Object.fromEntries(given) }, signal);
  },
  render(data, { parts, query }) {
    if (!parts[0]) {
      return data.namespaces.length
        ? section("Namespaces", tree(data.namespaces), data.more ? h("p", null, "Not all namespaces are shown. To list them: ", h("code", null, "quire namespace list")) : "")
        : h("p", null, "There are no namespaces yet. Create one: ", h("code", null, "quire namespace create PATH"));
    }
    const next = query.get("search") ? { search: query.get("search") } : {};
    return h("div", null, h("p", null, link("All namespaces", "streams")),
      data.streams.length ? table("Streams by name", [["Stream", ""]], data.streams.map((one) => [link(one, "stream", [parts[0], one])]))
        : h("p", null, "No streams were found."),
      h("nav", { class: "pager", "aria-label": "Pages of streams" },
        data.next === null ? "" : link("Next page", "streams", [parts[0]], { ...next, after: data.next })));
  },
};

const SEGMENT = { "in progress": "note", completed: "good", truncated: "warn", lost: "bad" };

function chain(data) {
  const drawn = data.segments.slice(-SEGMENTS_DRAWN_MAX);
  const left = data.segments.length - drawn.length;
  return [left ? h("p", { class: "quiet" }, `The last ${drawn.length} of ${data.segments.length} segments`) : "",
    h("ol", { class: "chain" }, drawn.map((one) => h("li", { class: one.state === "truncated" ? "truncated" : null },
      h("p", null, h("strong", null, `Segment ${one.number}`), " ", mark(SEGMENT[one.state] ?? "note", one.state)),
      h("p", null, `${counted(one.records, "record")}, ${bytes(one.bytes)}`),
      h("p", { class: "quiet" }, `${one.first} to ${one.last ?? "–"}`),
      h("p", null, link(`Ledger ${one.ledger_id}`, "ledger", [one.ledger_id])))))];
}

export const stream = {
  title: ({ parts }) => `Stream ${parts[1]}`,
  interval: 5000,
  load: ({ parts }, signal) => get("/api/v1/quire/stream", { namespace: parts[0] ?? "", name: parts[1] ?? "" }, signal),
  render(data, { parts }) {
    const rows = data.lag.map((one) => [one.name, one.error ? "unreadable" : one.position ?? "nothing committed", one.error ?? count(one.records)]);
    return h("div", null, h("p", null, link(`All streams of ${parts[0]}`, "streams", [parts[0]])),
      facts([
        ["Records that can be read", count(data.records)], ["Bytes", bytes(data.bytes)],
        ["First", h("small", null, data.first ?? "–")], ["Last", h("small", null, data.last ?? "–")],
        ["Ended", data.ended ? "yes" : "no"],
      ]),
      section("Segments, oldest first", chain(data)),
      section("Subscriptions", rows.length ? table(
        `Progress of each subscription${data.lag.length < data.subscriptions.length ? `: the first ${data.lag.length} of ${data.subscriptions.length}` : ""}`,
        [["Subscription", ""], ["Next position", ""], ["Records behind", "number"]], rows) : h("p", null, "There are no subscriptions.")));
  },
};
