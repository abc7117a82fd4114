import { get } from "/ui/api.js";
import { h, link, mark, table } from "/ui/dom.js";
import { bytes, count, milliseconds, rate } from "/ui/format.js";
import { spaceAge } from "/ui/overview.js";

const PAGE = 200;
const STATES = { writable: ["good", "✓ writable"], "read-only": ["warn", "! read-only"], gone: ["bad", "✗ gone"] };

function space(one) {
  if (one.answers === false) return mark("bad", "✗ no answer");
  if (one.free_bytes === null) return one.state === "gone" ? "–" : spaceAge(null);
  const used = one.total_bytes - one.free_bytes;
  const meter = h("meter", { min: 0, max: one.total_bytes, high: 0.95 * one.total_bytes, value: used, "aria-label": `used on ${one.id}` });
  return [meter, ` ${bytes(one.free_bytes)} free of ${bytes(one.total_bytes)} `, spaceAge(one.space_age_s)];
}

export const bookies = {
  title: () => "Bookies",
  load: ({ query }, signal) => get("/api/v1/quire/bookies", {
    space: true, rates: true, gone: true, limit: PAGE, ...(query.has("after") ? { after: query.get("after") } : {}),
  }, signal),
  render(data) {
    if (!data.bookies.length) {
      return h("p", null, "There are no bookies. Start one: ", h("code", null, "quire bookie start --dir DIR"));
    }
    const columns = [["Bookie", ""], ["State", ""], ["Rack", ""], ["Space", ""], ["Ledgers", "number"],
      ["Adds", "number"], ["Bytes added", "number"], ["Reads", "number"], ["Add, p99", "number"], ["Sync, p99", "number"]];
    const rows = data.bookies.map((one) => [
      one.id, [mark(...STATES[one.state]), one.compaction_suspended?.length ? [" ", mark("warn", `! ${one.compaction_suspended.join(" and ")} compaction suspended`)] : ""], one.location ?? "–", space(one), count(one.rates?.ledgers),
      rate(one.rates?.adds_per_s), rate(one.rates?.add_bytes_per_s, "B"), rate(one.rates?.reads_per_s),
      milliseconds(one.rates?.add_p99_ms), milliseconds(one.rates?.sync_p99_ms),
    ]);
    return h("div", null, table("Bookies by id", columns, rows),
      h("nav", { class: "pager", "aria-label": "Pages of bookies" },
        data.next === null ? "" : link("Next page", "bookies", [], { after: data.next })));
  },
};
