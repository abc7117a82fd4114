// Objects, datasets and state machines: a list and a page of each.

import { get } from "/ui/parts/api.js";
import { LEDGER, command, commandWith, empty, quoted, tiles } from "/ui/parts/controls.js";
import { address, facts, h, link, mark, section, sortable, sorts, table } from "/ui/parts/dom.js";
import { bytes, clock, count, counted, date, time } from "/ui/parts/format.js";
import { pager, textField } from "/ui/parts/lists.js";

const PAGE = 50;
const INTERVAL = 10000;

const when = (text) => (text ? time(Date.parse(text)) : "–");
/** Return a time as a key figure: the time of day, and the date below it. */
const moment = (text) => (text ? { value: [clock(Date.parse(text) / 1000)], below: date(Date.parse(text)) } : { value: "–" });
const given = (query, ...names) => Object.fromEntries(names.filter((name) => query.get(name)).map((name) => [name, query.get(name)]));

/** Return a form that searches a list by a part of the names in it. */
function search(label, to, name, value) {
  const field = textField(`${name}-of-names`, label, value, { type: "search" });
  const submit = (event) => {
    event.preventDefault();
    location.hash = to(field.value ? { [name]: field.value } : {});
  };
  return h("form", { role: "search", onsubmit: submit }, field.field, h("button", null, "Search"));
}

const unreadable = (why) => (why ? h("div", { class: "alert bad" }, h("p", null, `✗ ${why}.`)) : "");

const ledgerOf = (data) => [link(`${data.ledger_id}`, "ledger", [data.ledger_id]), " ", mark(...(LEDGER[data.ledger] ?? ["note", data.ledger]))];

// -- objects ------------------------------------------------------------------------------------

const OBJECTS = [{ text: "Object", by: (one) => one.name }, { text: "Size", type: "number", by: (one) => one.bytes },
  { text: "Stored", type: "when", by: (one) => one.ctime }, { text: "Ledger" }];

export const objects = {
  title: ({ parts }) => (parts[0] ? `Objects of bucket ${parts[0]}` : "Objects"),
  crumbs: ({ parts }) => (parts[0] ? [["Buckets", address("objects")]] : []),
  interval: INTERVAL,
  controls: ({ parts, query }) => (parts[0] ? search("Beginning of an object's name", (values) => address("objects", [parts[0]], values), "prefix", query.get("prefix")) : null),
  load: ({ parts, query }, signal) => (parts[0] ? get("/api/v1/quire/objects", { bucket: parts[0], limit: PAGE, ...given(query, "prefix", "after") }, signal)
    : get("/api/v1/quire/buckets", {}, signal)),
  render(data, { parts: [bucket], query }) {
    if (!bucket) {
      return data.buckets.length ? section("Buckets", h("ul", { class: "cards names" }, data.buckets.map((one) => h("li", { class: "card" }, link(one, "objects", [one])))),
        data.more ? h("p", null, "Not all buckets are shown.") : "")
        : empty("There are no objects yet", "An object is an immutable blob with a name. Store a file as one:", "quire object put FILE NAME");
    }
    const kept = given(query, "prefix");
    return h("div", null, unreadable(data.unreadable),
      data.objects.length ? sortable(`objects ${bucket}`, sorts(`${counted(data.objects.length, "object")} by name.`), OBJECTS, data.objects,
        (one) => [link(one.name, "object", [bucket, one.name]), bytes(one.bytes), when(one.ctime), link(`${one.ledger_id}`, "ledger", [one.ledger_id])], { text: "Object", down: false })
        : empty("No objects were found"),
      pager("Pages of objects", [["First page", query.has("after") && address("objects", [bucket], kept)],
        ["Next page", data.next !== null && address("objects", [bucket], { ...kept, after: data.next })]]));
  },
};

export const object = {
  title: ({ parts }) => `Object ${parts[1]}`,
  crumbs: ({ parts: [bucket] }) => [["Buckets", address("objects")], [`Bucket ${bucket}`, address("objects", [bucket])]],
  interval: INTERVAL,
  load: ({ parts }, signal) => get("/api/v1/quire/object", { bucket: parts[0] ?? "", name: parts[1] ?? "" }, signal),
  render(data) {
    const metadata = Object.entries(data.metadata);
    return h("div", null,
      data.ledger === "lost" ? h("div", { class: "alert bad" }, h("p", null, `✗ This object is lost: its ledger ${data.ledger_id} was deleted.`), h("p", null, "What to do: put the object again from the source of its bytes.")) : "",
      tiles([{ name: "Size", value: bytes(data.bytes), below: counted(data.bytes, "byte") }, { name: "Chunks", value: count(data.chunks), below: `of ${bytes(data.chunk_bytes)}, an entry each` },
        { name: "Stored", ...moment(data.ctime) }]),
      section("Details", facts([["Ledger", ledgerOf(data)], ["Bucket", data.bucket], ["SHA-256", h("small", { class: "mono" }, data.sha256)]]),
        data.ledger === "lost" ? "" : [h("p", null, link("Show its bytes, chunk by chunk", "ledger", [data.ledger_id, "entries"])),
          h("p", null, "To store its bytes in a file:"), command(commandWith("quire object get", data.name, `${data.bucket === "default" ? "" : `--bucket ${quoted(data.bucket)} `}-o FILE`))]),
      section("Metadata", metadata.length ? table("Text that the application stored with the object", [["Key", ""], ["Value", ""]], metadata, "rows pairs") : h("p", { class: "quiet" }, "The application stored no metadata with it.")));
  },
};

// -- datasets -----------------------------------------------------------------------------------

const DATASETS = [{ text: "Dataset", by: (one) => one.name }, { text: "Ledgers", type: "number", by: (one) => one.ledgers }, { text: "Rows", type: "number", by: (one) => one.rows },
  { text: "Size", type: "number", by: (one) => one.bytes }, { text: "Publications", type: "number", by: (one) => one.sequence }];

export const datasets = {
  title: () => "Datasets",
  interval: INTERVAL,
  controls: ({ query }) => search("Part of a dataset's name", (values) => address("datasets", [], values), "search", query.get("search")),
  load: ({ query }, signal) => get("/api/v1/quire/datasets", { limit: PAGE, ...given(query, "search", "after") }, signal),
  render(data, { query }) {
    const kept = given(query, "search");
    return h("div", null, data.datasets.length ? sortable("datasets", sorts(`${counted(data.datasets.length, "dataset")} by name.`), DATASETS, data.datasets,
      (one) => (one.error ? [link(one.name, "dataset", [one.name]), mark("bad", "✗ unreadable"), "–", "–", one.error]
        : [link(one.name, "dataset", [one.name]), count(one.ledgers), count(one.rows), bytes(one.bytes), count(one.sequence)]), { text: "Dataset", down: false })
      : empty(query.has("search") ? "No datasets were found" : "There are no datasets yet", query.has("search") ? "" : "A dataset is a named set of ledgers that is published in one step. Spark jobs and the Python API publish them."),
    pager("Pages of datasets", [["First page", query.has("after") && address("datasets", [], kept)],
      ["Next page", data.next !== null && address("datasets", [], { ...kept, after: data.next })]]));
  },
};

const PARTS = [["Ledger", ""], ["Entries", ""], ["Rows", "number"], ["Size", "number"], ["Partition", ""]];

export const dataset = {
  title: ({ parts }) => `Dataset ${parts[0]}`,
  crumbs: () => [["Datasets", address("datasets")]],
  interval: INTERVAL,
  load: ({ parts, query }, signal) => get("/api/v1/quire/dataset", { name: parts[0] ?? "", limit: PAGE, ...(/^[0-9]{1,9}$/.test(query.get("after") ?? "") ? given(query, "after") : {}) }, signal),
  render(data, { query }) {
    const begin = Number(query.get("after") ?? 0);
    return h("div", null,
      tiles([{ name: "Rows", value: count(data.rows) }, { name: "Size", value: bytes(data.bytes), below: "payloads, without replicas" }, { name: "Ledgers", value: count(data.ledgers) },
        { name: "Publications", value: count(data.sequence), below: "since it was created" }]),
      section("Ledgers", data.parts.length ? table(`${begin ? `Parts ${count(begin + 1)} to ${count(begin + data.parts.length)}` : counted(data.parts.length, "part")} of ${count(data.part_count)}, in the order of publication`, PARTS,
        data.parts.map((one) => [link(`${one.ledger_id}`, "ledger", [one.ledger_id]), link(`${one.first} to ${one.last}`, "ledger", [one.ledger_id, "entries"], { first: one.first }), count(one.rows), bytes(one.bytes), Object.entries(one.partition).map(([name, value]) => h("div", null, `${name}=${value}`))]))
        : empty("The dataset has no ledgers"),
      pager("Pages of ledgers", [["First page", begin > 0 && address("dataset", [data.name])], ["Next page", data.next !== null && address("dataset", [data.name], { after: data.next })]])),
      section("Columns", data.columns ? table(data.partition_by.length ? `The rows are divided by ${data.partition_by.join(", ")}` : "The rows are not divided", [["Column", ""], ["Type", ""]], Object.entries(data.columns), "rows pairs") : h("p", { class: "quiet" }, "Each entry is a row.")),
      section("Transaction keys", data.transactions.length ? table(data.transactions.length < data.transaction_count ? `The newest ${data.transactions.length} of ${count(data.transaction_count)}` : "Newest first",
        [["Key", ""], ["Publication", "number"]], data.transactions.map((one) => [one.key, count(one.sequence)])) : h("p", { class: "quiet" }, "No publication had a transaction key.")));
  },
};

// -- state machines -----------------------------------------------------------------------------

const MACHINES = [{ text: "State machine", by: (one) => one.stream }, { text: "Namespace", by: (one) => one.namespace }, { text: "Commands in the snapshot", type: "number", by: (one) => one.applied },
  { text: "Snapshot", type: "number", by: (one) => one.bytes }, { text: "Taken", type: "when", by: (one) => one.ctime }];

export const machines = {
  title: () => "State machines",
  interval: INTERVAL,
  load: ({ query }, signal) => get("/api/v1/quire/state_machines", { limit: PAGE, ...given(query, "after") }, signal),
  render(data, { query }) {
    return h("div", null, unreadable(data.unreadable),
      data.state_machines.length ? sortable("machines", sorts(`${counted(data.state_machines.length, "state machine")} by name.`), MACHINES, data.state_machines,
        (one) => [link(one.stream, "machine", [one.name]), link(one.namespace, "streams", [one.namespace]), one.error ? mark("bad", "✗ unreadable") : count(one.applied), bytes(one.bytes), when(one.ctime)], { text: "State machine", down: false })
        : empty("No state machine has a snapshot yet", "A state machine appears here once it has taken its first snapshot. Before that, it is a stream like any other."),
      pager("Pages of state machines", [["First page", query.has("after") && address("machines")], ["Next page", data.next !== null && address("machines", [], { after: data.next })]]),
      data.state_machines.length ? h("p", { class: "quiet" }, "A state machine without a snapshot is a stream like any other, and is not listed here.") : "");
  },
};

export const machine = {
  title: ({ parts }) => `State machine /${parts[0]}`,
  crumbs: () => [["State machines", address("machines")]],
  interval: INTERVAL,
  load: ({ parts }, signal) => get("/api/v1/quire/state_machine", { name: parts[0] ?? "" }, signal),
  render(data) {
    return h("div", null,
      data.problem ? h("div", { class: "alert bad" }, h("p", null, `✗ ${data.problem}.`)) : "",
      data.ledger === "lost" ? h("div", { class: "alert bad" }, h("p", null, `✗ The snapshot is lost: its ledger ${data.ledger_id} was deleted.`),
        h("p", null, "If another replica of the state machine has applied the commands, let it become the leader and store a snapshot. To see what else is missing:"), command("quire explain")) : "",
      tiles([{ name: "Commands in the snapshot", value: count(data.applied) }, { name: "Commands since", value: count(data.commands_since), below: "to apply at the next start" },
        { name: "Size of the snapshot", value: bytes(data.bytes) }, { name: "Taken", ...moment(data.ctime) }]),
      section("Details", facts([["Stream of commands", link(`${data.stream} in ${data.namespace}`, "stream", [data.namespace, data.stream])],
        ["Reading continues at", h("span", { class: "mono" }, data.position ?? "–")], ["Ledger of the snapshot", ledgerOf(data)], ["SHA-256 of the state", h("small", { class: "mono" }, data.sha256)]]),
      data.position ? h("p", null, link("Show the commands since the snapshot", "stream", [data.namespace, data.stream, "records"], { from: data.position })) : ""));
  },
};
