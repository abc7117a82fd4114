// Dialogs: a question before something is done, and the form for the token. They are native, so the
// keyboard stays inside, Escape closes them, and the focus returns to where it was.

import { accepted, access, keepToken, onAccess, whyNot } from "/ui/parts/access.js";
import { h, icon } from "/ui/parts/dom.js";

export const TOKEN_PLACE = "The token is in the file of --http-token-file. If the server runs in a terminal, it is also in the address that the server showed there.";
const TITLE = "dialog-title";
let forms = 0;

/** Return whether a dialog is open. The page behind it must not be drawn again meanwhile. */
export const dialogOpen = () => document.querySelector("dialog[open]") !== null;

/** Show a dialog, and return a promise of its `returnValue`, which is "" if it was given up. */
function show(title, ...content) {
  const dialog = h("dialog", { "aria-labelledby": TITLE }, h("h2", { id: TITLE }, title), content);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
  });
}

const close = (value) => (event) => event.currentTarget.closest("dialog").close(value);

/** Ask before something is done. A question has a `title`, the `text` that says what will happen, and
 * the words of the button that does it, `action`. The focus is on the button that does nothing. */
export async function confirmed({ title, text, action }) {
  return await show(title, h("p", null, text), h("p", { class: "buttons" },
    h("button", { type: "button", autofocus: true, onclick: close("") }, "Cancel"),
    h("button", { type: "button", class: "danger", onclick: close("yes") }, action))) === "yes";
}

/** Return a form for the token. `done` is called when the server has accepted one. */
export function tokenForm(done = () => {}) {
  const id = `token-${forms += 1}`;
  const input = h("input", { id, type: "password", autocomplete: "off", required: true, "aria-describedby": `${id}-problem` });
  const problem = h("p", { id: `${id}-problem`, role: "status" });
  const button = h("button", null, "Use this token");
  const submit = async (event) => {
    event.preventDefault();
    const given = input.value.trim();
    button.disabled = true;
    const good = await accepted(given);
    button.disabled = false;
    if (good) {
      keepToken(given);
      done();
    } else {
      problem.textContent = good === null ? "The server does not answer. Try again." : "This is not the token of this server.";
      input.focus();
      input.select();
    }
  };
  return h("form", { class: "token", onsubmit: submit },
    h("div", null, h("label", { for: id }, "Token (kept only in this tab)"), input), button, problem);
}

export function askForToken() {
  const form = tokenForm(() => form.closest("dialog").close());
  return show("Enter the token of this server", h("p", null, TOKEN_PLACE),
    form, h("p", { class: "buttons" }, h("button", { type: "button", onclick: close("") }, "Cancel")));
}

/** Return a paragraph that says why nothing can be changed, and what to do, or "" if it can. */
export function accessNote() {
  const why = whyNot();
  return why ? h("p", { class: "access-note" }, why, access() === "token-needed"
    ? [" ", h("button", { type: "button", onclick: askForToken }, "Enter the token")] : "") : "";
}

const place = h("div", { id: "access" });
document.getElementById("theme").before(place);

/** Say in the header of the page that nothing can be changed. */
function showAccess() {
  const why = whyNot();
  place.replaceChildren(why === "" ? "" : access() === "token-needed"
    ? h("button", { type: "button", class: "quiet-button", title: why, onclick: askForToken }, icon("lock"), h("span", { class: "label" }, "Enter the token"))
    : h("span", { class: "quiet-button", title: why }, icon("lock"), h("span", { class: "label" }, "Read-only")));
}

onAccess(showAccess);
