"use strict";
// What every part needs: numbers in words, panels of controls, charts, colours, and the address that keeps it all.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

// ------------------------------------------------------------------------------------------------------------ numbers
const MINUS = "\u2212";
const signed = (text) => text.replace("-", MINUS);

// To so many significant digits; very large and very small ones as a power of ten.
function show(value, digits = 4) {
  if (value === null || !Number.isFinite(value)) return value === Infinity ? "∞" : "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e7) {
    const [head, tail] = value.toExponential(digits - 1).split("e");
    return signed(`${head} × 10${superscript(Number(tail))}`);
  }
  return signed(value.toLocaleString("en-GB", { maximumSignificantDigits: digits, minimumSignificantDigits: digits }));
}

const superscript = (n) => String(n).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]));
const whole = (value) => signed(Math.round(value).toLocaleString("en-GB"));
const gained = (value) => (value > 0 ? "+" : "") + whole(value);
const degree = (value, digits = 2) => `${signed(value.toFixed(digits))}°`;

// ------------------------------------------------------------------------------------------------------------- panels
// A panel of controls: each field has id, label and, for a number, min, max, step, start (whole or even: no others;
// log: the slider moves in logarithms); for a choice, options (value -> words) and start. `changed` is told of every change.
class Panel {
  constructor(name, fields, changed) {
    this.name = name;
    this.fields = new Map(fields.map((field) => [field.id, { ...field }]));
    this.values = Object.fromEntries(fields.map((field) => [field.id, field.start]));
    this.usual = { ...this.values };
    this.changed = changed;
    this.form = document.querySelector(`#${name} form`);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    for (const field of this.fields.values()) this.form.append(this.build(field));
    const reset = make("button", { type: "button", class: "reset" }, "Reset");
    reset.addEventListener("click", () => this.assign(this.usual));
    this.buttons = make("div", { class: "buttons wide" }, reset);
    this.form.append(this.buttons);
  }

  button(label, act) {
    const made = make("button", { type: "button" }, label);
    made.addEventListener("click", act);
    this.buttons.prepend(made);
  }

  build(field) {
    const id = `${this.name}-${field.id}`;
    const label = make("label", { for: id }, field.label);
    if (field.options) {
      field.select = make("select", { id });
      this.offer(field.id, field.options);
      field.select.addEventListener("change", () => this.assign({ [field.id]: field.select.value }, field.id));
      return make("div", { class: "field wide" }, label, field.select);
    }
    field.number = make("input", { type: "number", id: `${id}-number`, "aria-label": `${field.label}, as a number`, step: "any" });
    field.slider = make("input", { type: "range", id });
    field.number.addEventListener("change", () => this.assign({ [field.id]: field.number.valueAsNumber }, field.id));
    field.slider.addEventListener("input", () => {
      field.held = true; // the hand is on the slider: leave it where it is
      this.assign({ [field.id]: this.fromSlider(field) }, field.id);
      field.held = false;
    });
    this.place(field);
    return make("div", { class: "field" }, label, field.number, field.slider);
  }

  offer(id, options) {
    const field = this.fields.get(id);
    field.options = options;
    field.select.replaceChildren(...Object.entries(options).map(([value, words]) => make("option", { value }, words)));
    field.select.value = this.values[id];
  }

  fromSlider(field) {
    const at = Number(field.slider.value);
    return field.log ? Number((field.min * (field.max / field.min) ** (at / 1000)).toPrecision(3 + 6 * Boolean(field.whole))) : at;
  }

  // A value that the field can have, the nearest to the one asked for.
  fit(field, value) {
    if (field.options) return Object.hasOwn(field.options, value) ? value : field.start;
    if (!Number.isFinite(value)) return this.values[field.id];
    const bounded = Math.min(field.max, Math.max(field.min, value));
    if (!field.even && !field.whole) return bounded;
    const step = field.even ? 2 : 1;
    return Math.min(field.max, Math.max(field.min, Math.round(bounded / step) * step));
  }

  // Put the controls where the values are.
  place(field) {
    const value = this.values[field.id];
    if (field.options) {
      field.select.value = value;
      return;
    }
    const short = String(Number(value.toPrecision(7)));
    field.number.value = short;
    Object.assign(field.number, { min: field.min, max: field.max });
    const log = field.log;
    Object.assign(field.slider, log ? { min: 0, max: 1000, step: 1 } : { min: field.min, max: field.max, step: field.step });
    const at = log ? (1000 * Math.log(value / field.min)) / Math.log(field.max / field.min) : value;
    if (!field.held) field.slider.value = String(at);
    field.slider.setAttribute("aria-valuetext", short);
  }

  // Other bounds for a number, or keep a hand off it (disabled), or leave it out (hidden).
  limit(id, bounds) {
    const field = this.fields.get(id);
    const { disabled, hidden, ...rest } = bounds;
    Object.assign(field, rest);
    if (disabled !== undefined) for (const input of [field.number, field.slider]) input.disabled = disabled;
    if (hidden !== undefined) field.slider.parentElement.hidden = hidden;
    this.values[id] = this.fit(field, this.values[id]);
    this.place(field);
  }

  // Take new values, tell of them, and keep the address up to date. `by` is the field that was moved.
  assign(values, by = null) {
    for (const [id, value] of Object.entries(values)) {
      const field = this.fields.get(id);
      if (field) this.values[id] = this.fit(field, value);
    }
    this.changed(this.values, by, this);
    for (const field of this.fields.values()) this.place(field);
    Address.keep();
  }

  // What differs from the usual values, for the address.
  entries() {
    return [...this.fields.keys()]
      .filter((id) => this.values[id] !== this.usual[id])
      .map((id) => [`${this.name}.${id}`, String(this.values[id])]);
  }

  restore(given) {
    const parsed = (id) => (this.fields.get(id).options ? given[id] : Number(given[id]));
    const known = Object.keys(given).filter((id) => this.fields.has(id));
    const choices = known.filter((id) => this.fields.get(id).options);
    for (const id of choices) this.assign({ [id]: parsed(id) }, id); // a choice may set other fields: first
    if (known.length > choices.length) this.assign(Object.fromEntries(known.map((id) => [id, parsed(id)])));
  }
}

// -------------------------------------------------------------------------------------------------- facts and tables
// Numbers over their names. Rows: name, value, and the value in words.
function facts(part, rows) {
  const list = document.querySelector(`#${part} .facts`);
  list.replaceChildren(
    ...rows.map(([name, value, words]) =>
      make("div", {}, make("dt", {}, name), make("dd", { "data-value": String(value) }, words ?? show(value)))
    )
  );
}

// A table. Columns: name, and how a row's value reads; the first is the row's own name.
function fill(id, columns, rows) {
  const head = make("tr", {}, ...columns.map(([name], i) => make("th", { scope: "col", class: i ? "n" : "s" }, name)));
  const body = rows.map((row) =>
    make("tr", {}, ...columns.map(([, of, words], i) => {
      const value = of(row);
      return make("td", { class: i ? "n" : "name", "data-value": String(value) }, words ? words(value) : String(value));
    }))
  );
  document.getElementById(id).replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
}

// ------------------------------------------------------------------------------------------------------------- charts
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
    const columns = entry.width < 520 ? 2 : 5;
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
  const copied = (rows) => Object.fromEntries(Object.entries(rows).map(([name, table]) => [name, table.map((row) => ({ ...row }))]));

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

// ------------------------------------------------------------------------------------------------------------ colours
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

// ------------------------------------------------------------------------------------------------------------ address
// `#gain.layer=3&theme=dark&at=stream`: what differs from the start. Unknown names and impossible values are ignored.
const Address = (() => {
  const panels = [];
  let at = "";
  let ready = false;

  const parse = (text) => (text.includes("=") ? Object.fromEntries(new URLSearchParams(text)) : { at: text });

  function keep() {
    if (!ready) return;
    const entries = panels.flatMap((panel) => panel.entries());
    if (Theme.chosen() !== "auto") entries.push(["theme", Theme.chosen()]);
    if (at) entries.push(["at", at]);
    history.replaceState(null, "", entries.length ? `#${new URLSearchParams(entries)}` : "#");
  }

  // Give every panel its own of the `given` values.
  function spread(given) {
    for (const panel of panels) {
      const own = Object.entries(given).filter(([name]) => name.startsWith(`${panel.name}.`));
      panel.restore(Object.fromEntries(own.map(([name, value]) => [name.slice(panel.name.length + 1), value])));
    }
  }

  function restore() {
    const given = parse(location.hash.slice(1));
    if (given.theme) Theme.choose(given.theme);
    spread(given);
    ready = true;
    go(given.at, false);
  }

  // What a link of the page does: show a part, or move controls where they are.
  function follow(text) {
    const given = parse(text);
    spread(given);
    if (given.at) go(given.at);
  }

  // Show a part, as a link to it would.
  function go(name, focus = true) {
    const part = [...document.querySelectorAll(".part")].find((each) => each.id === name);
    if (!part) return;
    part.scrollIntoView();
    if (focus) part.focus({ preventScroll: true });
    at = name;
    keep();
  }

  function begin() {
    for (const link of document.querySelectorAll('a[href^="#"]'))
      link.addEventListener("click", (event) => {
        event.preventDefault();
        follow(link.getAttribute("href").slice(1));
      });
    const links = new Map([...document.querySelectorAll("nav.parts a")].map((a) => [a.getAttribute("href").slice(1), a]));
    const seen = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries)
          if (isIntersecting)
            for (const [name, link] of links)
              name === target.id ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
      },
      { rootMargin: "-30% 0px -65% 0px" }
    );
    for (const part of document.querySelectorAll(".part")) seen.observe(part);
  }

  return { panels, begin, keep, restore, go };
})();
