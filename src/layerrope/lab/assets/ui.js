"use strict";
// Elements, numbers in words, facts and tables.
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
  return signed(
    value.toLocaleString("en-GB", { maximumSignificantDigits: digits, minimumSignificantDigits: digits }),
  );
}

const superscript = (n) => String(n).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]));
const whole = (value) => signed(Math.round(value).toLocaleString("en-GB"));
const gained = (value) => (value > 0 ? "+" : "") + whole(value);
const degree = (value, digits = 2) => `${signed(value.toFixed(digits))}°`;

// -------------------------------------------------------------------------------------------------- facts and tables
// Numbers over their names. Rows: name, value, and the value in words.
function facts(part, rows) {
  const list = document.querySelector(`#${part} .facts`);
  list.replaceChildren(
    ...rows.map(([name, value, words]) =>
      make("div", {}, make("dt", {}, name), make("dd", { "data-value": String(value) }, words ?? show(value))),
    ),
  );
}

// A table. Columns: name, and how a row's value reads; the first is the row's own name.
function fill(id, columns, rows) {
  const head = make(
    "tr",
    {},
    ...columns.map(([name], i) => make("th", { scope: "col", class: i ? "n" : "s" }, name)),
  );
  const body = rows.map((row) =>
    make(
      "tr",
      {},
      ...columns.map(([, of, words], i) => {
        const value = of(row);
        return make(
          "td",
          { class: i ? "n" : "name", "data-value": String(value) },
          words ? words(value) : String(value),
        );
      }),
    ),
  );
  document.getElementById(id).replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
}
