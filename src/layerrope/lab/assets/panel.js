"use strict";
// A panel of controls: each field has id, label and, for a number, min, max, step, start (whole or even: no others;
// log: the slider moves in logarithms); for a choice, options (value -> words) and start. `changed` is told of changes.
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
    field.number = make("input", {
      type: "number",
      id: `${id}-number`,
      "aria-label": `${field.label}, as a number`,
      step: "any",
    });
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
    field.select.replaceChildren(
      ...Object.entries(options).map(([value, words]) => make("option", { value }, words)),
    );
    field.select.value = this.values[id];
  }

  fromSlider(field) {
    const at = Number(field.slider.value);
    return field.log
      ? Number((field.min * (field.max / field.min) ** (at / 1000)).toPrecision(3 + 6 * Boolean(field.whole)))
      : at;
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
    const short = String(field.whole || field.even ? value : Number(value.toPrecision(4)));
    field.number.value = short;
    Object.assign(field.number, { min: field.min, max: field.max });
    const log = field.log;
    Object.assign(
      field.slider,
      log ? { min: 0, max: 1000, step: 1 } : { min: field.min, max: field.max, step: field.step },
    );
    const span = Math.log(field.max / field.min) || 1;
    const at = log ? (1000 * Math.log(value / field.min)) / span : value;
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
