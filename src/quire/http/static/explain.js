import { get } from "/ui/api.js";
import { h, section } from "/ui/dom.js";
import { idForm } from "/ui/ledgers.js";
import { problemList } from "/ui/overview.js";

export const explain = {
  title: () => "Explain",
  interval: 5000,
  controls: () => idForm("What is with ledger", "ledger"),
  load: (where, signal) => get("/api/v1/quire/overview", {}, signal),
  render: (data) => section("What is with the cluster", data.problems.length ? problemList(data.problems)
    : h("p", { class: "alert good" }, "✓ Nothing that is known of"),
  h("p", { class: "quiet" }, "On the command line: ", h("code", null, "quire explain"), ", ", h("code", null, "quire explain ledger ID"), ", and what a bookie keeps on its disk: ", h("code", null, "quire bookie explain space DIR"))),
};
