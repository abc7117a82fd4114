// Dialogs: a question before something is done. They are native, so the keyboard stays inside,
// Escape closes them, and the focus returns to where it was.

import { h } from "/ui/dom.js";

const TITLE = "dialog-title";

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

/** Return a paragraph that says why nothing can be changed, or "" if it can. */
export const accessNote = () => "";
