"use strict";
// Draw every chart in the colours of the reader's system, and again when those change.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map();

async function draw(figure, themes) {
  const config = themes[dark.matches ? "dark" : "light"];
  const narrow = figure.clientWidth < 520;
  const legend = { ...config.legend, columns: narrow ? 2 : 5 };
  const options = {
    ast: true, // expressions are interpreted, never compiled: the page's policy forbids eval
    renderer: "svg",
    mode: "vega-lite",
    config: { ...config, legend },
    actions: { export: true, source: false, compiled: false, editor: false },
    tooltip: { theme: dark.matches ? "dark" : "light" },
  };
  const spec = read(figure.id.replace("chart", "spec"));
  const before = drawn.get(figure.id);
  if (before) before.finalize();
  drawn.set(figure.id, await window.vegaEmbed(figure, spec, options));
}

function drawAll() {
  const themes = read("themes");
  for (const figure of document.querySelectorAll(".chart")) {
    draw(figure, themes).catch((error) => {
      figure.textContent = "This chart could not be drawn (" + error.message + ").";
    });
  }
}

dark.addEventListener("change", drawAll);
drawAll();
