// Buttons that change something. They are disabled, with the reason, while this tab may not.

import { whyNot } from "/ui/parts/access.js";
import { confirmed } from "/ui/parts/dialogs.js";
import { h } from "/ui/parts/dom.js";

/** What is asked before a change of the whole cluster. */
export const QUESTIONS = {
  autorecoveryOff: {
    title: "Switch autorecovery off in the whole cluster?",
    text: "Until somebody switches it on again, no process restores the copies that a lost bookie or a broken disk had. Repairs that are under way are completed.",
    action: "Switch autorecovery off",
    danger: true,
  },
  autorecoveryOn: {
    title: "Switch autorecovery on in the whole cluster?",
    text: "Every process that runs autorecovery begins to repair the ledgers that lack copies. The bookies concerned have more reads and writes meanwhile.",
    action: "Switch autorecovery on",
  },
  audit: {
    title: "Look for lost bookies now?",
    text: "A bookie that is not registered counts as lost at once, even if it is only being restarted. Its ledgers are then copied to other bookies.",
    action: "Look for lost bookies",
  },
  rebalance: {
    title: "Move copies between bookies?",
    text: "A job of this server moves copies from the fullest bookies to the emptiest, until they are about equally full. It can be paused and cancelled. What it has moved by then stays moved.",
    action: "Rebalance the cluster",
  },
  decommission: (bookie) => ({
    title: `Remove ${bookie} permanently?`,
    text: "The bookie becomes read-only, and a job of this server copies its ledgers to other bookies. When none is left, the bookie is removed from the cluster and its process stops.",
    action: "Decommission the bookie",
    danger: true,
  }),
  recover: (bookie) => ({
    title: `Copy the ledgers of ${bookie} to other bookies?`,
    text: "A job of this server copies them from the replicas that are left. Do this only if the bookie will not come back.",
    action: "Recover the bookie",
    danger: true,
  }),
};

/** Whether the page that is shown is the last known state, because the metadata store does not answer. */
let storeAway = false;

/** Note whether the metadata store answers: buttons that are created meanwhile are disabled. */
export function noteStore(away) {
  storeAway = away;
}

/** Return a button that is disabled while its work runs, and while nothing can be changed. `label` is
 * its name for screen readers. If a question is given, it is asked first (see `confirmed`), and a button whose
 * question has `danger` is red. */
export function button(text, label, work, act, question = null) {
  const why = whyNot() || (storeAway ? "The metadata store does not answer." : "");
  const press = async (event) => {
    const pressed = event.currentTarget;
    if (question && !await confirmed(question)) return;
    pressed.disabled = true;
    act(work).finally(() => { pressed.disabled = false; });
  };
  return h("button", { type: "button", class: question?.danger ? "danger" : null, "aria-label": label, title: why || null, disabled: why !== "", onclick: press }, text);
}
