"use strict";
// Light or dark: as the system, until told otherwise.
const Theme = (() => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const choices = { auto: "Auto", light: "Light", dark: "Dark" };
  let chosen = "auto";
  const mode = () => (chosen === "auto" ? (system.matches ? "dark" : "light") : chosen);

  function choose(name) {
    chosen = Object.hasOwn(choices, name) ? name : "auto";
    const root = document.documentElement;
    if (chosen === "auto") delete root.dataset.theme;
    else root.dataset.theme = chosen;
    for (const input of document.querySelectorAll("#theme input")) input.checked = input.value === chosen;
  }

  function begin() {
    const list = document.getElementById("theme");
    for (const [value, words] of Object.entries(choices)) {
      const input = make("input", { type: "radio", name: "theme", value });
      input.addEventListener("change", () => {
        choose(value);
        Charts.redraw();
        Address.keep();
      });
      list.append(make("label", {}, input, words));
    }
    system.addEventListener("change", () => chosen === "auto" && Charts.redraw());
    choose("auto");
  }

  return { begin, mode, choose, chosen: () => chosen };
})();
