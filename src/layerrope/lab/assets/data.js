"use strict";
// What the page was made with, and how its packed numbers are read.
const DATA = read("lab");
const last = (values) => values[values.length - 1];

// The lower triangle of a Gram matrix, row by row, as the whole of it.
function unpackGram(numbers) {
  const n = Math.round((Math.sqrt(8 * numbers.length + 1) - 1) / 2);
  const at = (i, k) => numbers[(i * (i + 1)) / 2 + k];
  return Array.from({ length: n }, (_, i) =>
    Float64Array.from({ length: n }, (_, k) => (k <= i ? at(i, k) : at(k, i))),
  );
}

// fp32 numbers from the base64 text of their bytes.
function unpackFloats(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float64Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}
