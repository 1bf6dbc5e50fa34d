"use strict";
// Puts the page to work.
function credits() {
  const { name, source, licence } = DATA.smollm2;
  document.getElementById("credits").textContent =
    `Norm weights of ${name} (${source}), ${licence}; sizes and inner products of them are in this page. ` +
    "LayerRoPE: Srivastava and Kanan 2026, arXiv 2610.09179. Layer-Norm Scaling: Sun et al. 2025, arXiv 2502.05795. " +
    "Hyper-Connections: arXiv 2409.19606; mHC: arXiv 2512.24880.";
}

Theme.begin();
Address.begin();
for (const part of [GainPart, StreamPart, MiragePart, BudgetPart]) part.begin();
credits();
Address.restore();

// From the top of a part to the end of its charts, pixels of the page.
function bounds(name) {
  const [part, view] = [document.getElementById(name), document.querySelector(`#${name} .view`)];
  return [part.getBoundingClientRect().top + scrollY, view.getBoundingClientRect().bottom + scrollY];
}

// For a reader's console, and for the tests.
window.lab = {
  Gain,
  Stream,
  Mirage,
  Budget,
  GainPart,
  StreamPart,
  MiragePart,
  BudgetPart,
  Charts,
  panels: Address.panels,
  bounds,
};
window.lab.ready = Charts.begin().then(() => Charts.settled());
