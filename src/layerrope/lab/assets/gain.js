"use strict";
// LayerRoPE's gains: what layerrope.gains.gain_table computes, one layer at a time, in double precision.
//
// A law holds: n_layer, d, base, spectrum ("rope", "single" or "none"), schedule ("power", or "geometric" with the
// number of layers it was trained with), alpha, beta, alpha_rot, beta_rot; gamma(layer), the vector (d); and, of a run
// with free tables, magnitude and angle (n_layer), to which the four scalars are added.
const Gain = (() => {
  function depth(law, l) {
    if (law.schedule !== "geometric") return Math.log(l + 1);
    const L = law.trained; // of how many layers the last has the depth log(L)
    return L > 1 ? (l * Math.log(L)) / (L - 1) : 0;
  }

  const logSize = (law, l) => law.alpha + law.beta * depth(law, l) + (law.magnitude ? law.magnitude[l] : 0);

  // theta(l, 0), radians
  function angle(law, l) {
    if (law.spectrum === "none") return 0;
    return Math.exp(law.alpha_rot + law.beta_rot * depth(law, l) + (law.angle ? law.angle[l] : 0));
  }

  const share = (law, j) => (law.spectrum === "rope" ? Math.exp(2 * j * (-Math.log(law.base) / law.d)) : 1);

  // The gain of layer l, (d).
  function row(law, l) {
    const gamma = law.gamma(l);
    const out = new Float64Array(law.d);
    const [size, theta] = [Math.exp(logSize(law, l)), angle(law, l)];
    for (let j = 0; 2 * j + 1 < law.d; j++) {
      const turn = theta * share(law, j);
      const [u, v, cos, sin] = [gamma[2 * j], gamma[2 * j + 1], Math.cos(turn), Math.sin(turn)];
      out[2 * j] = size * (u * cos - v * sin);
      out[2 * j + 1] = size * (u * sin + v * cos);
    }
    return out;
  }

  const rms = (values) => Math.sqrt(values.reduce((sum, v) => sum + v * v, 0) / values.length);

  // RMS over channels of layer l's gain: a rotation leaves it as it is.
  const size = (law, l) => Math.exp(logSize(law, l)) * rms(law.gamma(l));

  // The angle between two vectors of which one is turned by `theta` in its first pair, degrees.
  function between(law, a, b, theta) {
    let dot = 0;
    for (let j = 0; 2 * j + 1 < law.d; j++) {
      const [cos, sin] = [Math.cos(theta * share(law, j)), Math.sin(theta * share(law, j))];
      const [u, v] = [b[2 * j] * cos - b[2 * j + 1] * sin, b[2 * j] * sin + b[2 * j + 1] * cos];
      dot += a[2 * j] * u + a[2 * j + 1] * v;
    }
    const cosine = dot / (law.d * rms(a) * rms(b));
    return (Math.acos(Math.min(1, Math.max(-1, cosine))) * 180) / Math.PI;
  }

  // Degrees from layer 0's gain to layer l's.
  const turned = (law, l) => (l === 0 ? 0 : between(law, law.gamma(0), law.gamma(l), angle(law, l) - angle(law, 0)));

  // Degrees from the shared vector to layer l's gain.
  const turnedFrom = (law, l) => between(law, law.gamma(l), law.gamma(l), angle(law, l));

  const negative = (values) => values.reduce((count, v) => count + (v < 0 ? 1 : 0), 0);

  return { row, rms, size, angle, logSize, turned, turnedFrom, negative };
})();
