// Light or dark: as the system says, or as somebody chose in this browser.

const KEPT = "quire.theme";
const CHOICES = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

/** Call a function each time that the colours change. Returns a function that ends this. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Return the value of a colour variable of the style sheet, for drawings on a canvas. */
export function colour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

function chosen() {
  const kept = localStorage.getItem(KEPT);
  return CHOICES.includes(kept) ? kept : "system";
}

function apply() {
  const name = chosen();
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  const words = { system: "System colours", light: "Light", dark: "Dark" }[name];
  button.querySelector(".label").textContent = words;
  button.setAttribute("aria-label", `Colours: ${words.toLowerCase()}. Press to change`);
  for (const listener of listeners) listener();
}

document.getElementById("theme").addEventListener("click", () => {
  localStorage.setItem(KEPT, CHOICES[(CHOICES.indexOf(chosen()) + 1) % CHOICES.length]);
  apply();
});
dark.addEventListener("change", () => listeners.forEach((listener) => listener()));
apply();
