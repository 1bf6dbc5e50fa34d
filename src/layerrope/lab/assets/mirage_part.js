"use strict";
// Part 3: vectors, their picture, and its null.
const MiragePart = (() => {
  const DRAWS = 50;
  const SOURCES = sources();
  const FIELDS = [
    { id: "source", label: "Vectors", options: names(), start: "growing" },
    { id: "n", label: "Vectors n", min: 3, max: 64, step: 1, whole: true, start: 32 },
    { id: "d", label: "Width d", min: 4, max: 4096, step: 1, log: true, whole: true, start: 1024 },
    { id: "top", label: "Last over first size", min: 1, max: 64, step: 0.1, log: true, start: 8 },
    { id: "noise", label: "Noise, of each size", min: 0, max: 0.5, step: 0.005, start: 0.05 },
    { id: "seed", label: "Draw", min: 0, max: 999, step: 1, whole: true, start: 0 },
  ];
  let panel = null;
  let shown = null; // {gram, d, angles, picture, null}
  let task = 0;

  function sources() {
    const made = {};
    const add = (key, name, found) => found.gram && (made[key] = { name, d: found.d, gram: unpackGram(found.gram) });
    add("smollm2-attn", "SmolLM2-135M: norms at the attention read", DATA.smollm2.sites.attn_read);
    add("smollm2-mlp", "SmolLM2-135M: norms at the MLP read", DATA.smollm2.sites.mlp_read);
    for (const [site, found] of Object.entries(DATA.run ? DATA.run.sites : {}))
      add(`run-${site}`, `the run: ${DATA.sites[site]}`, found);
    return made;
  }

  function names() {
    const measured = Object.entries(SOURCES).map(([key, source]) => [key, source.name]);
    return { growing: "one that only grows", ...Object.fromEntries(measured) };
  }

  function changed(values) {
    const source = SOURCES[values.source];
    for (const id of ["n", "d", "top", "noise"]) panel.limit(id, { hidden: Boolean(source) });
    const gram = source ? source.gram : Mirage.gram(Mirage.growing(values));
    const d = source ? source.d : values.d;
    shown = { gram, d, angles: Mirage.trueAngles(gram), picture: Mirage.picture(gram), null: null };
    report();
    task += 1;
    setTimeout(drawNull, 150, task, values.seed, Mirage.shared(gram, d), []);
  }

  // The null, a few draws at a time, so that sliders stay quick; given up when something moves.
  function drawNull(mine, seed, of, found, numbers = Mirage.normals(1000003 + seed)) {
    if (mine !== task) return;
    const until = performance.now() + 12;
    while (found.length < DRAWS && performance.now() < until) found.push(Mirage.nullSweep(of, shown.d, numbers));
    if (found.length < DRAWS) {
      setTimeout(drawNull, 0, mine, seed, of, found, numbers);
      return;
    }
    const nets = found.map((sweep) => sweep.net);
    const mean = nets.reduce((a, b) => a + b, 0) / DRAWS;
    const std = Math.sqrt(nets.reduce((a, b) => a + (b - mean) ** 2, 0) / DRAWS);
    shown.null = { mean, std, low: Math.min(...nets), high: Math.max(...nets), draws: DRAWS };
    report();
  }

  function report() {
    const { angles, picture } = shown;
    const none = shown.null;
    facts("mirage", [
      ["largest true angle", angles.largest, degree(angles.largest)],
      ["swept in the picture", picture.sweep.net, degree(picture.sweep.net, 1)],
      [
        "its null, mean of 50 draws",
        none && none.mean,
        none ? `${degree(none.mean, 1)} ± ${none.std.toFixed(1)}` : "…",
      ],
      ["stress of the picture", picture.stress, show(picture.stress, 3)],
      [
        "variance it keeps",
        picture.kept,
        Number.isFinite(picture.kept) ? `${(100 * picture.kept).toFixed(2)} %` : "–",
      ],
    ]);
    document.getElementById("mirage-verdict").textContent = verdict(angles, picture.sweep.net, none);
    const line = (values, kind) => values.map((value, layer) => ({ layer, value, kind }));
    const rows = [...line(angles.fromFirst, "true angle"), ...line(picture.sweep.fromFirst, "swept in the picture")];
    const points = picture.points.map(([x, y], layer) => ({ layer, x, y }));
    const reach = 1.1 * Math.max(1e-12, ...points.map((p) => Math.max(Math.abs(p.x), Math.abs(p.y))));
    Charts.update("picture", { points }, { reach });
    const [low, high] = none ? [none.low, none.high] : [picture.sweep.net, picture.sweep.net];
    const bar = [{ at: points.length - 1, low, high }];
    Charts.update("swept", { angles: rows, null: bar });
  }

  function verdict(angles, net, none) {
    const seen = `No two vectors are more than ${degree(angles.largest, 1)} apart, and the picture sweeps ${degree(net, 1)}. `;
    if (!none) return `${seen}Drawing the null …`;
    const range = `${degree(none.low, 1)} to ${degree(none.high, 1)}`;
    const within = net >= none.low && net <= none.high;
    const still = `${seen}Vectors of the same sizes and departures that do not turn sweep ${range} in ${none.draws} draws`;
    const luck = Math.round((none.draws + 1) / 2); // of so many such pictures, one falls outside of the draws
    return within
      ? `${still}: this sweep says nothing about direction.`
      : `${still}; this one lies outside, as one in ${luck} does by luck. What turned, and how far, the true angles say.`;
  }

  function begin() {
    panel = new Panel("mirage", FIELDS, changed);
    panel.button("Draw again", () => panel.assign({ seed: (panel.values.seed + 1) % 1000 }));
    Address.panels.push(panel);
    panel.assign({});
  }

  return { begin, shown: () => shown };
})();
