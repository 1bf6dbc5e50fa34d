"use strict";
// Part 1: one layer's gain, from the panel's values and where they start from.
const GainPart = (() => {
  const START = { alpha: 0, beta: -0.5, alpha_rot: 0, beta_rot: -0.5, base: 100, spectrum: "rope" };
  const LADDER = { ...START, alpha: 0, beta: 0, n_layer: 24, d: 2048 };
  const UNKNOWN = "What the paper does not print (the other scalars, and γ) is left out: no offset, γ of ones";
  const PRESETS = {
    start: { words: "the values training starts from", values: START, note: "" },
    "write-attn": {
      words: "the paper’s 1.3B: attention write, slope +0.56",
      values: { ...LADDER, beta: 0.56, spectrum: "none" },
      note: `The slope as printed in the paper’s Figures 20 and 21. ${UNKNOWN}, no rotation.`,
    },
    "write-mlp": {
      words: "the paper’s 1.3B: MLP write, slope +0.76",
      values: { ...LADDER, beta: 0.76, spectrum: "none" },
      note: `The slope as printed in the paper’s Figures 20 and 21. ${UNKNOWN}, no rotation.`,
    },
    "read-mlp": {
      words: "the paper’s 1.3B: MLP read, rotation −1.09 from 49°",
      values: { ...LADDER, alpha_rot: Number(Math.log((49 * Math.PI) / 180).toPrecision(6)), beta_rot: -1.09 },
      note: `The rotation alone: its slope as printed, its first angle as read off the plot. ${UNKNOWN}, no slope of the size.`,
    },
    ...measuredPresets(),
    ...runPresets(),
  };
  const FIELDS = [
    { id: "preset", label: "Start from", options: words(PRESETS), start: "start" },
    { id: "layer", label: "Layer l", min: 0, max: 23, step: 1, whole: true, start: 0 },
    { id: "n_layer", label: "Layers L", min: 2, max: 512, step: 1, log: true, whole: true, start: 24 },
    { id: "d", label: "Width d", min: 4, max: 4096, step: 2, log: true, even: true, start: 64 },
    { id: "alpha", label: "α, size at layer 0", min: -4, max: 4, step: 0.01, start: 0 },
    { id: "beta", label: "β, its slope", min: -2, max: 2, step: 0.01, start: -0.5 },
    { id: "alpha_rot", label: "α′, angle at layer 0", min: -6, max: 1.5, step: 0.01, start: 0 },
    { id: "beta_rot", label: "β′, its slope", min: -2, max: 2, step: 0.01, start: -0.5 },
    { id: "base", label: "Spectrum base", min: 1, max: 10000, step: 1, log: true, start: 100 },
    {
      id: "spectrum",
      label: "Angle of pair j",
      options: { rope: "falling with j, like RoPE’s", single: "the same for every pair", none: "none, no rotation" },
      start: "rope",
    },
  ];
  let panel = null;
  let current = null; // the law shown now

  function words(presets) {
    return Object.fromEntries(Object.entries(presets).map(([name, preset]) => [name, preset.words]));
  }

  function measuredPresets() {
    const names = { attn_read: "attention read", mlp_read: "MLP read" };
    const made = Object.entries(DATA.smollm2.sites).map(([site, found]) => [
      `smollm2-${site}`,
      {
        words: `SmolLM2-135M’s ${names[site]}: the power law nearest to its norms`,
        values: {
          ...START,
          n_layer: found.rms.length,
          d: found.d,
          alpha: found.law.alpha,
          beta: found.law.beta,
          spectrum: "none",
        },
        note: "Least squares on the logarithm of the RMS of every layer’s norm weight. The model was trained without LayerRoPE; what its vectors turn is on the right, not in this law.",
      },
    ]);
    return Object.fromEntries(made);
  }

  function runPresets() {
    const table = DATA.run && DATA.run.table;
    if (!table) return {};
    const made = Object.entries(table.sites).map(([site, own]) => {
      const { alpha, beta, alpha_rot, beta_rot } = own;
      const values = {
        alpha,
        beta,
        alpha_rot,
        beta_rot,
        n_layer: table.n_layer,
        d: table.d,
        base: table.base,
        spectrum: table.spectrum,
      };
      const note = `${DATA.run.name}: the numbers it learned, with its own γ. Sliders move them from there.`;
      return [`run-${site}`, { words: `the run: ${DATA.sites[site]}`, values, note, site, table, own }];
    });
    return Object.fromEntries(made);
  }

  // The law that the panel's values describe; of a run, with its own vectors and tables.
  function lawOf(values) {
    const preset = PRESETS[values.preset];
    const ones = new Float64Array(values.d).fill(1);
    const law = { ...values, schedule: "power", magnitude: null, angle: null, gamma: () => ones };
    if (!preset.table) return law;
    const gamma = (preset.gamma ??= unpackFloats(preset.own.gamma));
    const d = preset.table.d;
    const rows = preset.table.per_layer ? (l) => gamma.subarray(l * d, (l + 1) * d) : () => gamma;
    const schedule = preset.table.schedule === "geometric" ? "geometric" : "power";
    return {
      ...law,
      d,
      schedule,
      trained: preset.table.trained,
      magnitude: preset.own.magnitude,
      angle: preset.own.angle,
      gamma: rows,
    };
  }

  function changed(values, by) {
    const preset = PRESETS[values.preset];
    if (by === "preset") {
      bound(preset);
      return panel.assign(preset.values);
    }
    panel.limit("layer", { max: values.n_layer - 1 });
    current = lawOf(panel.values);
    showAll(current, panel.values.layer, preset);
  }

  // Let every control reach what the preset has, and hold what its vectors and tables were made for.
  function bound(preset) {
    const free = preset.table && (preset.table.per_layer || preset.table.schedule === "free");
    const held = { d: Boolean(preset.table), n_layer: Boolean(free) };
    for (const { id, min, max } of FIELDS.filter((field) => !field.options && field.id !== "layer")) {
      const value = preset.values[id] ?? min;
      const reach = held[id] ? { min: value, max: value } : { min: Math.min(min, value), max: Math.max(max, value) };
      panel.limit(id, { ...reach, disabled: Boolean(held[id]) });
    }
  }

  function showAll(law, l, preset) {
    const row = Gain.row(law, l);
    const negative = Gain.negative(row);
    const theta = (Gain.angle(law, l) * 180) / Math.PI;
    facts("gain", [
      ["size factor eʳ", Math.exp(Gain.logSize(law, l))],
      ["RMS of the gain", Gain.rms(row)],
      ["angle of the first pair", theta, degree(theta)],
      ["the whole vector, from γ", Gain.turnedFrom(law, l), degree(Gain.turnedFrom(law, l))],
      ["negative channels", negative, `${whole(negative)} of ${whole(law.d)}`],
    ]);
    drawRow(law, row, l);
    drawDepth(law, l, preset);
    const bare = DATA.run && !DATA.run.table;
    document.getElementById("gain-note").textContent = bare
      ? `${preset.note} ${DATA.run.name} has no scalars of LayerRoPE; the dots of the run are its attention read.`.trim()
      : preset.note;
  }

  function drawRow(law, row, l) {
    const sign = (...values) => (values.some((v) => v < 0) ? "one negative" : "both positive");
    const pairs = Array.from({ length: law.d / 2 }, (_, j) => {
      const [x, y] = [row[2 * j], row[2 * j + 1]];
      return { pair: j, x, y, sign: sign(x, y) };
    });
    const channels = Array.from(row, (gain, channel) => ({
      channel,
      gain,
      sign: sign(gain),
      place: channel % 2 ? "second of its pair" : "first of its pair",
    }));
    const first = (layer) => {
      const [size, gamma, theta] = [Math.exp(Gain.logSize(law, layer)), law.gamma(layer), Gain.angle(law, layer)];
      const [cos, sin] = [Math.cos(theta), Math.sin(theta)];
      return { layer, x: size * (gamma[0] * cos - gamma[1] * sin), y: size * (gamma[0] * sin + gamma[1] * cos) };
    };
    const trail = Array.from({ length: law.n_layer }, (_, layer) => first(layer));
    const start = { x: law.gamma(l)[0], y: law.gamma(l)[1] };
    const reach = 1.08 * Math.max(...pairs.map((p) => Math.hypot(p.x, p.y)), Math.hypot(start.x, start.y));
    const dot = law.d > 1000 ? 10 : law.d > 200 ? 20 : 36;
    const radius = Math.hypot(pairs[0].x, pairs[0].y);
    const ring = Array.from({ length: 121 }, (_, i) => {
      const turn = (2 * Math.PI * i) / 120;
      return { layer: i, x: radius * Math.cos(turn), y: radius * Math.sin(turn) };
    });
    const shade = [
      { x: -reach, to_x: 0, y: -reach, to_y: reach },
      { x: 0, to_x: reach, y: -reach, to_y: 0 },
    ];
    Charts.update("pairs", { pairs, trail, ring, shade, start: [start] }, { reach, dot });
    Charts.update("channels", { channels }, { dot });
  }

  function drawDepth(law, l, preset) {
    const layers = Array.from({ length: law.n_layer }, (_, layer) => layer);
    const line = (of) => layers.map((layer) => ({ layer: layer + 1, value: of(layer), who: "this law" }));
    const beside = [
      ["SmolLM2 attention read", DATA.smollm2.sites.attn_read],
      ["SmolLM2 MLP read", DATA.smollm2.sites.mlp_read],
    ];
    const site = preset.site ?? "attn_read";
    if (DATA.run && DATA.run.sites[site]) beside.push(["the run", DATA.run.sites[site]]);
    const dots = (of) =>
      beside.flatMap(([who, found]) => of(found).map((value, layer) => ({ layer: layer + 1, value, who })));
    const sizes = line((layer) => Gain.size(law, layer));
    const turns = line((layer) => Gain.turned(law, layer));
    Charts.update("sizes", { law: sizes, measured: dots((m) => m.rms), now: [sizes[l]] });
    const measured = dots((m) => (m.turned ??= m.gram ? Mirage.trueAngles(unpackGram(m.gram)).fromFirst : []));
    Charts.update("turns", { law: turns, measured, now: [turns[l]] });
  }

  function begin() {
    panel = new Panel("gain", FIELDS, changed);
    Address.panels.push(panel);
    const first = DATA.run && DATA.run.table ? `run-${Object.keys(DATA.run.table.sites)[0]}` : "start";
    panel.assign({ preset: first }, "preset");
    panel.usual = { ...panel.values };
  }

  return { begin, law: () => current, presets: PRESETS };
})();
