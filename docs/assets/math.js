// Formulas are marked by the page builder; Temml, loaded before this file, turns those marks into MathML.
for (const mark of document.querySelectorAll(".arithmatex")) {
  const tex = mark.textContent.trim();
  temml.render(tex.slice(2, -2), mark, { displayMode: tex.startsWith("\\[") });
}
