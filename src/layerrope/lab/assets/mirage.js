"use strict";
// Angles of vectors, the two-dimensional picture of them, and its null: what layerrope.inspector.mds and .angles
// compute. Everything comes from the Gram matrix of the n vectors, an array of n arrays.
const Mirage = (() => {
  const degrees = (radians) => (radians * 180) / Math.PI;
  const square = (n, entry) =>
    Array.from({ length: n }, (_, i) => Float64Array.from({ length: n }, (_, k) => entry(i, k)));
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const mean = (values) => sum(values) / values.length;

  // -------------------------------------------------------------------------------------------------- random numbers
  // Four 32-bit words of state (Bob Jenkins' small generator): uniform on (0, 1), the same for the same seed.
  function uniform(seed) {
    let [a, b, c, d] = [0xf1ea5eed, seed | 0, seed | 0, seed | 0];
    const next = () => {
      const e = (a - ((b << 27) | (b >>> 5))) | 0;
      a = b ^ ((c << 17) | (c >>> 15));
      b = (c + d) | 0;
      c = (d + e) | 0;
      d = (e + a) | 0;
      return ((d >>> 0) + 0.5) / 4294967296;
    };
    for (let i = 0; i < 20; i++) next();
    return next;
  }

  // Standard normal numbers (Box and Muller 1958).
  function normals(seed) {
    const random = uniform(seed);
    let spare = null;
    const normal = () => {
      if (spare !== null) {
        const kept = spare;
        spare = null;
        return kept;
      }
      const [r, turn] = [Math.sqrt(-2 * Math.log(random())), 2 * Math.PI * random()];
      spare = r * Math.sin(turn);
      return r * Math.cos(turn);
    };
    return { normal, random };
  }

  // A chi-square number with k degrees of freedom: twice a gamma number of shape k/2 (Marsaglia and Tsang 2000).
  function chiSquare(k, { normal, random }) {
    if (k === 1) return normal() ** 2;
    const d = k / 2 - 1 / 3;
    const c = 1 / Math.sqrt(9 * d);
    for (;;) {
      const x = normal();
      const v = (1 + c * x) ** 3;
      if (v > 0 && Math.log(random()) < 0.5 * x * x + d - d * v + d * Math.log(v)) return 2 * d * v;
    }
  }

  // -------------------------------------------------------------------------------------------------------- vectors
  // n copies of one flat vector in R^d scaled from 1 to `top`, with noise of `noise` times each copy's size a channel.
  function growing({ n, d, top, noise, seed }) {
    const { normal } = normals(seed);
    return Array.from({ length: n }, (_, i) => {
      const scale = n > 1 ? 1 + ((top - 1) * i) / (n - 1) : 1;
      return Float64Array.from({ length: d }, () => scale * (1 + noise * normal()));
    });
  }

  function gram(rows) {
    const out = square(rows.length, () => 0);
    rows.forEach((a, i) => {
      for (let k = 0; k <= i; k++) {
        const b = rows[k];
        let dot = 0;
        for (let c = 0; c < a.length; c++) dot += a[c] * b[c];
        out[i][k] = out[k][i] = dot;
      }
    });
    return out;
  }

  // The Gram matrix about the centroid.
  function centred(G) {
    const means = G.map(mean);
    const all = mean(means);
    return square(G.length, (i, k) => G[i][k] - means[i] - means[k] + all);
  }

  function trueAngles(G) {
    const between = (i, k) => degrees(Math.acos(Math.min(1, Math.max(-1, G[i][k] / Math.sqrt(G[i][i] * G[k][k])))));
    let largest = 0;
    for (let i = 0; i < G.length; i++) for (let k = 0; k < i; k++) largest = Math.max(largest, between(i, k));
    return { largest, fromFirst: G.map((_, i) => (i ? between(0, i) : 0)) };
  }

  // ------------------------------------------------------------------------------------------------------- pictures
  // Eigenvalues and eigenvectors of a symmetric matrix by Jacobi's rotations, largest first: {values, vectors}, each
  // vector an array.
  function eigen(matrix) {
    const n = matrix.length;
    const A = matrix.map((r) => Float64Array.from(r));
    const V = square(n, (i, k) => (i === k ? 1 : 0)); // its rows become the eigenvectors
    const scale = sum(A.map((r) => r.reduce((s, v) => s + v * v, 0)));
    for (let sweeps = 0; sweeps < 60; sweeps++) {
      let off = 0;
      for (let p = 0; p < n; p++) for (let q = 0; q < p; q++) off += A[p][q] ** 2;
      if (off <= 1e-30 * scale) break;
      for (let p = 0; p < n - 1; p++) for (let q = p + 1; q < n; q++) rotate(A, V, p, q);
    }
    const order = A.map((_, i) => i).sort((i, k) => A[k][k] - A[i][i]);
    return { values: order.map((i) => Math.max(A[i][i], 0)), vectors: order.map((i) => V[i]) };
  }

  // One rotation in the plane of rows p and q that makes A[p][q] zero.
  function rotate(A, V, p, q) {
    if (A[p][q] === 0) return;
    const tau = (A[q][q] - A[p][p]) / (2 * A[p][q]);
    const t = (tau >= 0 ? 1 : -1) / (Math.abs(tau) + Math.sqrt(1 + tau * tau));
    const c = 1 / Math.sqrt(1 + t * t);
    const s = t * c;
    const n = A.length;
    const [Ap, Aq, Vp, Vq] = [A[p], A[q], V[p], V[q]];
    for (let k = 0; k < n; k++) {
      const [x, y] = [Ap[k], Aq[k]];
      Ap[k] = c * x - s * y;
      Aq[k] = s * x + c * y;
      const [v, w] = [Vp[k], Vq[k]];
      Vp[k] = c * v - s * w;
      Vq[k] = s * v + c * w;
    }
    for (let k = 0; k < n; k++) {
      const row = A[k];
      const [x, y] = [row[p], row[q]];
      row[p] = c * x - s * y;
      row[q] = s * x + c * y;
    }
  }

  // Coordinates on the two largest axes; each axis points so that its largest coordinate is positive.
  function axes(G) {
    const { values, vectors } = eigen(G);
    const columns = [0, 1].map((a) => {
      const column = Array.from(vectors[a], (v) => v * Math.sqrt(values[a]));
      const far = column.reduce((best, v) => (Math.abs(v) > Math.abs(best) ? v : best), 0);
      return far < 0 ? column.map((v) => -v) : column;
    });
    return { points: G.map((_, i) => [columns[0][i], columns[1][i]]), values };
  }

  // Angles swept about the origin, degrees, and each point's angle unwrapped from the first's.
  function sweep(points) {
    const turn = [];
    for (const [x, y] of points) {
      const angle = Math.atan2(y, x);
      const last = turn.length ? turn[turn.length - 1] : angle;
      const step = angle - last;
      turn.push(last + step - 2 * Math.PI * Math.round(step / (2 * Math.PI)));
    }
    const net = Math.abs(turn[turn.length - 1] - turn[0]);
    const once = net % (2 * Math.PI);
    let path = 0;
    for (let i = 1; i < turn.length; i++) path += Math.abs(turn[i] - turn[i - 1]);
    return {
      net: degrees(net),
      folded: degrees(Math.min(once, 2 * Math.PI - once)),
      path: degrees(path),
      range: degrees(Math.max(...turn) - Math.min(...turn)),
      fromFirst: turn.map((a) => degrees(Math.abs(a - turn[0]))),
    };
  }

  // Points, Kruskal's stress-1, the share of the variance kept, and the sweep.
  function picture(G) {
    const C = centred(G);
    const { points, values } = axes(C);
    let [missed, drawn] = [0, 0];
    for (let i = 0; i < G.length; i++)
      for (let k = 0; k < i; k++) {
        const there = Math.sqrt(Math.max(C[i][i] + C[k][k] - 2 * C[i][k], 0));
        const here = Math.hypot(points[i][0] - points[k][0], points[i][1] - points[k][1]);
        missed += (there - here) ** 2;
        drawn += here * here;
      }
    return {
      points,
      stress: Math.sqrt(missed / drawn),
      kept: (values[0] + values[1]) / sum(values),
      sweep: sweep(points),
    };
  }

  // ------------------------------------------------------------------------------------------------------- the null
  // How far each vector lies along the best shared direction, and how much a channel it departs from it.
  function shared(G, d) {
    const { values, vectors } = eigen(G);
    const along = Array.from(vectors[0], (v) => v * Math.sqrt(values[0]));
    const sign = sum(along) < 0 ? -1 : 1;
    return {
      along: along.map((a) => sign * a),
      noise: along.map((a, i) => Math.sqrt(Math.max(G[i][i] - a * a, 0) / d)),
    };
  }

  // Gram matrix of vectors along[l] v + noise[l] e_l, e_l standard normal in R^d. One coordinate lies along v; the
  // Gram matrix of the d - 1 others is Wishart, drawn by its triangular factor (Bartlett 1933).
  function noisyGram({ along, noise }, d, numbers) {
    const n = along.length;
    const wide = d - 1 >= n;
    const others = Array.from({ length: n }, (_, i) =>
      Float64Array.from({ length: wide ? n : d - 1 }, (_, k) =>
        wide && k > i ? 0 : wide && k === i ? Math.sqrt(chiSquare(d - 1 - i, numbers)) : numbers.normal(),
      ),
    );
    const first = along.map((a, i) => a + noise[i] * numbers.normal());
    const rest = gram(others);
    return square(n, (i, k) => first[i] * first[k] + noise[i] * noise[k] * rest[i][k]);
  }

  // One draw's sweep. The null is many of these: one direction, each vector as far from it as it is, at random.
  const nullSweep = (of, d, numbers) => sweep(axes(centred(noisyGram(of, d, numbers))).points);

  return { growing, gram, trueAngles, picture, eigen, shared, normals, chiSquare, noisyGram, nullSweep };
})();
