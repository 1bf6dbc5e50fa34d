"use strict";
// Every chart of the page: drawn as wide as its place, in the colours that are chosen, again when either changes.
const Charts = (() => {
  const themes = read("themes");
  const live = read("charts");
  const drawn = new Map(); // element -> what is drawn there
  for (const element of document.querySelectorAll(".chart")) {
    const isLive = element.classList.contains("live");
    const spec = isLive ? live[element.id] : read(element.id.replace("chart", "spec"));
    drawn.set(element, { element, spec, live: isLive });
  }

  // Draw a specification in its element, as wide as that is.
  async function draw(entry) {
    const { element, spec } = entry;
    entry.width = element.clientWidth;
    const mode = Theme.mode();
    const config = themes[mode];
    const columns = entry.width < 520 ? 2 : entry.width < 800 ? 3 : 5;
    const legend = { ...config.legend, columns, labelLimit: Math.max(80, entry.width / columns - 44) };
    const shaped = entry.live ? { ...filled(entry), ...shape(element, entry.width) } : spec;
    const options = {
      ast: true, // expressions are interpreted, never compiled: the page's policy forbids eval
      renderer: entry.live && element.dataset.dense ? "canvas" : "svg",
      mode: "vega-lite",
      config: { ...config, legend },
      actions: entry.live ? false : { export: true, source: false, compiled: false, editor: false },
      tooltip: { theme: mode },
    };
    const turn = (entry.turn = (entry.turn ?? 0) + 1);
    const before = entry.result;
    const result = await window.vegaEmbed(element, shaped, options);
    if (turn !== entry.turn) return result.finalize();
    if (before) before.finalize();
    entry.result = result;
    if (entry.live && entry.stale) await apply(entry);
  }

  // The specification with the rows and numbers that there are now.
  function filled(entry) {
    entry.stale = false;
    const params = (entry.spec.params ?? []).map((param) => ({ ...param, value: entry.numbers[param.name] }));
    return { ...entry.spec, datasets: { ...entry.spec.datasets, ...copied(entry.rows) }, params };
  }

  // Rows of its own for every view: a view marks the rows that it takes in.
  const copied = (rows) =>
    Object.fromEntries(Object.entries(rows).map(([name, table]) => [name, table.map((row) => ({ ...row }))]));

  function shape(element, width) {
    if (element.dataset.square) {
      const side = Math.max(120, Math.min(width - 64, 400));
      return { width: side, height: side, autosize: { type: "pad" } };
    }
    return { width, height: Number(element.dataset.height), autosize: { type: "fit", contains: "padding" } };
  }

  // Give the drawn chart its rows and numbers.
  async function apply(entry) {
    if (!entry.result) return;
    entry.stale = false;
    const view = entry.result.view;
    for (const [name, value] of Object.entries(entry.numbers)) view.signal(name, value);
    for (const [name, rows] of Object.entries(copied(entry.rows))) view.data(name, rows);
    await view.runAsync();
  }

  // Show `rows` (by data name) and `numbers` (by signal) in the live chart `id`; the newest wins.
  function update(id, rows, numbers = {}) {
    const entry = drawn.get(document.getElementById(id));
    Object.assign(entry, { rows, numbers, stale: true });
    if (entry.waiting) return;
    entry.waiting = true;
    requestAnimationFrame(() => {
      entry.waiting = false;
      entry.settled = apply(entry).catch((error) => failed(entry, error));
    });
  }

  function failed(entry, error) {
    console.error(error);
    entry.element.textContent = `This chart could not be drawn (${error.message}).`;
  }

  function begin() {
    let waiting = null;
    const watch = new ResizeObserver(() => {
      clearTimeout(waiting);
      waiting = setTimeout(() => all((entry) => entry.live && entry.element.clientWidth !== entry.width), 120);
    });
    for (const element of drawn.keys()) watch.observe(element);
    return all(() => true);
  }

  function all(wanted) {
    for (const entry of [...drawn.values()].filter(wanted))
      entry.settled = draw(entry).catch((error) => failed(entry, error));
    return settled();
  }

  const view = (id) => drawn.get(document.getElementById(id)).result.view;
  const settled = () => Promise.all([...drawn.values()].map((entry) => entry.settled));

  return { begin, update, redraw: () => all(() => true), view, settled };
})();
