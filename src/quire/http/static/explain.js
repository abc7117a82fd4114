import { get } from "/ui/api.js";
import { h, section } from "/ui/dom.js";
import { idForm } from "/ui/ledgers.js";
import { problemList } from "/ui/overview.js";

export const explain = {
  title: () => "Explain",
  interval: 5000,
  controls: () => idForm("Explain the ledger with this id", "ledger"),
  load: (where, signal) => get("/api/v1/quire/overview", {}, signal),
  render: (data) => section("The cluster", data.problems.length ? problemList(data.problems)
    : h("p", { class: "alert good" }, "✓ No problems were found"),
  h("p", { class: "quiet" }, "On the command line: ", h("code", null, "quire explain"), ", ", h("code", null, "quire explain ledger ID"), ", and for the space on a bookie's disk ", h("code", null, "quire bookie explain space DIR"))),
};
