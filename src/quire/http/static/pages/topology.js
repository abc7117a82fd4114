// The bookies by region and rack.

import { get } from "/ui/parts/api.js";
import { empty, SIGNS, stateKind, usage } from "/ui/parts/controls.js";
import { address, h, section } from "/ui/parts/dom.js";
import { counted, percent } from "/ui/parts/format.js";
import { problemList } from "/ui/pages/overview.js";

/** Return the share of a bookie's disk that is used, or null. */
const used = (one) => (one.free_bytes === null || !one.total_bytes ? null : 1 - one.free_bytes / one.total_bytes);

/** Return a bookie as a chip: its state is a colour, a sign, and a word, which is hidden if the bookie is well. */
function chip(one) {
  const kind = stateKind(one);
  const share = used(one);
  const words = one.answers === false ? `${one.state}, does not answer` : one.state;
  return h("li", null, h("a", { class: `chip ${kind}`, href: address("bookie", [one.id]), title: `${one.id}: ${words}${share === null ? "" : `, ${percent(share)} of its disk used`}` },
    SIGNS[kind] ? h("span", { "aria-hidden": "true" }, `${SIGNS[kind]} `) : "", one.id, h("span", { class: kind === "good" ? "hidden-text" : null }, `: ${words}`),
    share === null ? "" : h("small", { class: one.fullness ? "full" : null }, `${percent(share)}`)));
}

const chips = (bookies) => h("ul", { class: "chips" }, bookies.map(chip));

/** Return the fullest of several bookies of a rack, if its disk is nearly full. */
function fullest({ bookies }) {
  const full = bookies.length < 2 ? [] : bookies.filter((one) => one.fullness && used(one) !== null).sort((first, second) => used(second) - used(first));
  return full.length ? h("small", { class: "worst" }, `fullest: ${full[0].id}, ${percent(used(full[0]))} used`) : "";
}

function rack(one) {
  const well = one.bookies.filter((bookie) => bookie.state === "writable" && bookie.answers !== false).length;
  const lost = !well && one.bookies.some((bookie) => stateKind(bookie) === "bad");
  return h("section", { class: `card rack ${lost ? "lost" : ""}`.trim(), "aria-label": `Rack ${one.location}` },
    h("header", null, h("h3", null, one.name), h("span", { class: well === one.bookies.length ? "quiet" : "some" }, `${well} of ${counted(one.bookies.length, "bookie")} writable`)),
    one.total_bytes ? usage(`disks of ${one.location}`, one.total_bytes - one.free_bytes, one.total_bytes, one.fullness) : "", fullest(one), chips(one.bookies));
}

const legend = () => h("p", { class: "quiet below-note" }, "✓ writable; the number is the share of the disk that is used. Clients use these locations if their placement has ",
  h("code", null, "locations=metadata"), ".");

export const topology = {
  title: () => "Topology",
  load: (where, signal) => get("/api/v1/quire/topology", {}, signal),
  oldSince: (data) => data.old_since_ms ?? null,
  render(data) {
    const { shape } = data;
    const known = data.regions.length > 0;
    if (!known && !data.unknown.length) return empty("There are no bookies", "Start one:", "quire bookie start --dir DIR");
    return h("div", null,
      data.warnings.length ? problemList(data.warnings, { "The overview": "#/" })
        : h("p", { class: "alert good" }, `✓ The racks suit ledgers of the default shape (${counted(shape.write_quorum, "copy")} of each entry on ${counted(shape.ensemble, "bookie")})`),
      legend(),
      data.regions.map((region) => section(region.name ? `Region ${region.name}` : "Racks", h("div", { class: "racks" }, region.racks.map(rack)))),
      data.unknown.length ? section("Without a location", h("div", { class: "card rack" }, chips(data.unknown))) : "");
  },
};
