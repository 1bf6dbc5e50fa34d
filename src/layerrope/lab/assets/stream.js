"use strict";
// The stream of independent writes: what layerrope.toy_stream computes.
const Stream = (() => {
  const power = (n, slope, scale = 1) => Array.from({ length: n }, (_, l) => scale * (l + 1) ** slope);

  const geometric = (n, ratio, scale = 1) => Array.from({ length: n }, (_, l) => scale * ratio ** l);

  // The ratio whose first and last of n writes are those of the power law with this slope.
  const geometricRatio = (n, slope) => (n > 1 ? n ** (slope / (n - 1)) : 1);

  // Sublayers that write independently: sites of {scale, write_slope, read_slope}.
  const block = (n, sites) =>
    Array.from({ length: n }, (_, l) =>
      Math.hypot(...sites.map((s) => s.scale * (l + 1) ** (s.write_slope + s.read_slope))),
    );

  // V_0 ... V_L
  function variance(writes, start = 0) {
    const out = [start];
    for (const g of writes) out.push(out[out.length - 1] + g * g);
    return out;
  }

  // u_l = g_l / sqrt(V_l); infinite where a write meets an empty stream.
  function relativeUpdate(writes, start = 0) {
    const before = variance(writes, start);
    return writes.map((g, l) => (g === 0 ? 0 : g / Math.sqrt(before[l])));
  }

  return { power, geometric, geometricRatio, block, variance, relativeUpdate };
})();
