"use strict";
// The four live parts: each reads its panel, computes, and shows numbers, tables and charts.
const DATA = read("lab");
const last = (values) => values[values.length - 1];

// The lower triangle of a Gram matrix, row by row, as the whole of it.
function unpackGram(numbers) {
  const n = Math.round((Math.sqrt(8 * numbers.length + 1) - 1) / 2);
  const at = (i, k) => numbers[(i * (i + 1)) / 2 + k];
  return Array.from({ length: n }, (_, i) => Float64Array.from({ length: n }, (_, k) => (k <= i ? at(i, k) : at(k, i))));
}

// fp32 numbers from the base64 text of their bytes.
function unpackFloats(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float64Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

// --------------------------------------------------------------------------------------------------- one layer's gain
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
        values: { ...START, n_layer: found.rms.length, d: found.d, alpha: found.law.alpha, beta: found.law.beta, spectrum: "none" },
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
      const values = { alpha, beta, alpha_rot, beta_rot, n_layer: table.n_layer, d: table.d, base: table.base, spectrum: table.spectrum };
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
    return { ...law, d, schedule, trained: preset.table.trained, magnitude: preset.own.magnitude, angle: preset.own.angle, gamma: rows };
  }

  function changed(values, by) {
    const preset = PRESETS[values.preset];
    if (by === "preset") return panel.assign(preset.values);
    const fixed = Boolean(preset.table);
    const free = fixed && (preset.table.per_layer || preset.table.schedule === "free");
    panel.limit("d", { disabled: fixed });
    panel.limit("n_layer", { disabled: free });
    panel.limit("layer", { max: values.n_layer - 1 });
    current = lawOf(panel.values);
    showAll(current, panel.values.layer, preset);
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

// ---------------------------------------------------------------------------------------------------------- the stream
const StreamPart = (() => {
  const FIELDS = [
    { id: "n_layer", label: "Blocks L", min: 2, max: 512, step: 1, log: true, whole: true, start: 128 },
    { id: "slope", label: "Power law’s slope", min: -1, max: 2, step: 0.01, start: 0.56 },
    {
      id: "ends",
      label: "Geometric schedule",
      options: { same: "with the power law’s ends", own: "a ratio of its own" },
      start: "same",
    },
    { id: "ratio", label: "Its ratio", min: 0.98, max: 1.2, step: 0.0005, start: 1.02 },
    { id: "start", label: "Variance at the start", min: 0, max: 100, step: 0.25, start: 0 },
  ];
  let panel = null;

  const ratioAt = (values, n) => (values.ends === "same" ? Stream.geometricRatio(n, values.slope) : values.ratio);

  // Name -> writes of n blocks.
  const schedules = (values, n) => ({
    "Pre-Norm": Stream.power(n, 0),
    "power law": Stream.power(n, values.slope),
    "learned at 1.3B": Stream.block(n, DATA.learned),
    geometric: Stream.geometric(n, ratioAt(values, n)),
  });

  const lastUpdates = (values, n) =>
    Object.fromEntries(Object.entries(schedules(values, n)).map(([k, g]) => [k, last(Stream.relativeUpdate(g, values.start))]));

  function changed(values) {
    const n = values.n_layer;
    panel.limit("ratio", { disabled: values.ends === "same" });
    const made = schedules(values, n);
    const at = { 24: lastUpdates(values, 24), 512: lastUpdates(values, 512), n: lastUpdates(values, n) };
    const rows = Object.entries(made).map(([name, writes]) => ({
      name,
      24: at[24][name],
      512: at[512][name],
      n: at.n[name],
      variance: last(Stream.variance(writes, values.start)),
    }));
    const limit = values.slope > -0.5 ? Math.sqrt(2 * values.slope + 1) : null;
    facts("stream", [
      ["Pre-Norm, last of 24 blocks", at[24]["Pre-Norm"]],
      ["Pre-Norm, last of 512", at[512]["Pre-Norm"]],
      [`power law over Pre-Norm, last of ${n}`, at.n["power law"] / at.n["Pre-Norm"], `${show(at.n["power law"] / at.n["Pre-Norm"])} ×`],
      ["its limit in great depth", limit, limit === null ? "none" : `${show(limit)} ×`],
      ["ratio of the geometric writes", ratioAt(values, n), show(ratioAt(values, n), 5)],
    ]);
    const own = n === 24 || n === 512 ? [] : [[`last of ${n}`, (r) => r.n, show]];
    fill(
      "stream-table",
      [
        ["schedule", (r) => r.name],
        ["update, last of 24", (r) => r[24], show],
        ["last of 512", (r) => r[512], show],
        ...own,
        [`variance after ${n}`, (r) => r.variance, show],
      ],
      rows
    );
    draw(made, values.start);
  }

  function draw(made, start) {
    const curve = (of) =>
      Object.entries(made).flatMap(([schedule, writes]) =>
        of(writes).map((value, l) => ({ block: l + 1, value, schedule })).filter((row) => row.value > 0 && row.value < Infinity)
      );
    const show = (id, rows) => {
      const ends = Object.keys(made).map((name) => last(rows.filter((row) => row.schedule === name))).filter(Boolean);
      Charts.update(id, { blocks: rows, ends });
    };
    show("updates", curve((writes) => Stream.relativeUpdate(writes, start)));
    show("variances", curve((writes) => Stream.variance(writes, start).slice(1)));
  }

  function begin() {
    panel = new Panel("stream", FIELDS, changed);
    Address.panels.push(panel);
    panel.assign({});
  }

  return { begin, schedules };
})();

// ---------------------------------------------------------------------------------------------------------- the mirage
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
      ["its null, mean of 50 draws", none && none.mean, none ? `${degree(none.mean, 1)} ± ${none.std.toFixed(1)}` : "…"],
      ["stress of the picture", picture.stress, show(picture.stress, 3)],
      ["variance it keeps", picture.kept, Number.isFinite(picture.kept) ? `${(100 * picture.kept).toFixed(2)} %` : "–"],
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
    return (
      seen +
      (within
        ? `Vectors of the same sizes and departures that do not turn sweep ${range}: this sweep says nothing about direction.`
        : `Vectors of the same sizes and departures that do not turn sweep ${range}: this picture differs from that, so the departures have an order of their own.`)
    );
  }

  function begin() {
    panel = new Panel("mirage", FIELDS, changed);
    panel.button("Draw again", () => panel.assign({ seed: (panel.values.seed + 1) % 1000 }));
    Address.panels.push(panel);
    panel.assign({});
  }

  return { begin, shown: () => shown };
})();

// ---------------------------------------------------------------------------------------------------------- the budget
const BudgetPart = (() => {
  const { schemes, tiers } = DATA.budget;
  const DEVICES = {
    h100: ["NVIDIA H100 SXM, dense bf16", 989],
    a100: ["NVIDIA A100, dense bf16", 312],
    rtx4090: ["NVIDIA RTX 4090, dense bf16", 165],
    own: ["another machine", null],
  };
  const SHAPE = ["n_layer", "d_model", "d_ff", "vocab_size", "seq_len"];
  const USUAL = "1b";
  const size = (id, label, max) => ({ id, label, min: 1, max, step: 1, log: true, whole: true, start: tiers[USUAL][id] });
  const FIELDS = [
    { id: "tier", label: "Shape", options: { ...names(), own: "a shape of its own" }, start: USUAL },
    size("n_layer", "Layers", 2048),
    { ...size("d_model", "Width", 65536), min: 2 },
    size("d_ff", "Width of the MLP", 262144),
    size("vocab_size", "Vocabulary", 1048576),
    size("seq_len", "Sequence length", 1048576),
    { id: "ratio", label: "Tokens a parameter", min: 0.1, max: 10000, step: 0.1, log: true, start: 80 },
    { id: "device", label: "Machine", options: Object.fromEntries(Object.entries(DEVICES).map(([k, v]) => [k, v[0]])), start: "h100" },
    { id: "teraflops", label: "Peak, TFLOP/s", min: 0.01, max: 10000, step: 0.01, log: true, start: 989 },
    { id: "devices", label: "Machines", min: 1, max: 65536, step: 1, log: true, whole: true, start: 8 },
    { id: "used", label: "Of the peak, %", min: 1, max: 100, step: 1, start: 40 },
  ];
  let panel = null;

  function names() {
    return Object.fromEntries(
      Object.entries(tiers).map(([name, t]) => [name, `${name}: ${t.n_layer} layers, width ${whole(t.d_model)}`])
    );
  }

  function changed(values, by) {
    if (by === "tier" && Object.hasOwn(tiers, values.tier)) Object.assign(values, tiers[values.tier]);
    if (SHAPE.includes(by)) values.tier = "own";
    if (by === "device" && DEVICES[values.device][1]) values.teraflops = DEVICES[values.device][1];
    if (by === "teraflops") values.device = "own";
    const shape = Object.fromEntries(SHAPE.map((name) => [name, values[name]]));
    const machine = { teraflops: values.teraflops, devices: values.devices, utilisation: values.used / 100 };
    const rows = schemes.map((scheme) => {
      const counted = Budget.account(shape, scheme);
      return { name: scheme.name, ...counted, ...Budget.run(counted, values.ratio, machine) };
    });
    report(rows, shape);
  }

  const percent = (share) => (share === 0 ? "0" : `${show(100 * share, 3)} %`);
  // 1.339 B: thousands, millions, billions (thousand millions), trillions.
  function amount(value) {
    const [scale, letter] = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]].find(([s]) => value >= s) ?? [1, ""];
    return `${show(value / scale)} ${letter}`.trim();
  }
  const time = (hours) => (hours < 1 ? `${show(60 * hours, 3)} min` : hours < 48 ? `${show(hours, 3)} h` : `${show(hours / 24, 3)} days`);

  function report(rows, shape) {
    const mine = rows.find((row) => row.name === "layerrope");
    facts("budget", [
      ["parameters, LayerRoPE", mine.parameters, amount(mine.parameters)],
      ["FLOPs a training token", mine.flops_per_token, amount(mine.flops_per_token)],
      ["write gates’ share", mine.gate_flops_share, percent(mine.gate_flops_share)],
      ["tokens", mine.run_tokens, amount(mine.run_tokens)],
      ["training takes", mine.hours, time(mine.hours)],
    ]);
    fill(
      "budget-table",
      [
        ["scheme", (r) => r.name],
        ["parameters", (r) => r.parameters, whole],
        ["beyond Pre-Norm", (r) => r.scheme_parameters, gained],
        ["FLOPs a token", (r) => r.flops_per_token, whole],
        ["gates’ share", (r) => r.gate_flops_share, percent],
        ["tokens", (r) => r.run_tokens, amount],
        ["FLOPs", (r) => r.run_flops, show],
        ["hours", (r) => r.hours, show],
      ],
      rows
    );
    draw(rows, shape);
  }

  function draw(rows, shape) {
    const { parts, flops } = { parts: Budget.parts(shape), flops: Budget.flops(shape) };
    const order = ["embedding", "attention", "attention scores", "MLP", "norms", "head"];
    const key = { "attention scores": "scores", MLP: "mlp" };
    const share = (of, amounts) =>
      order.map((part, i) => ({ of, part, amount: amounts[key[part] ?? part] ?? 0, order: i }));
    Charts.update("shares", { shares: [...share("parameters", parts), ...share("FLOPs", flops)] });
    const added = rows.map((row) => ({ scheme: row.name, parameters: row.scheme_parameters, sign: row.scheme_parameters < 0 ? "fewer" : "more" }));
    Charts.update("added", { added });
  }

  function begin() {
    panel = new Panel("budget", FIELDS, changed);
    Address.panels.push(panel);
    panel.assign({});
  }

  return { begin, schemes, tiers };
})();

// --------------------------------------------------------------------------------------------------------------- begin
function credits() {
  const { name, source, licence } = DATA.smollm2;
  document.getElementById("credits").textContent =
    `Norm weights of ${name} (${source}), ${licence}; sizes and inner products of them are in this page. ` +
    "LayerRoPE: Srivastava and Kanan 2026, arXiv 2610.09179. Layer-Norm Scaling: Sun et al. 2025, arXiv 2502.05795. " +
    "Hyper-Connections: arXiv 2409.19606; mHC: arXiv 2512.24880.";
}

Theme.begin();
Address.begin();
for (const part of [GainPart, StreamPart, MiragePart, BudgetPart]) part.begin();
credits();
Address.restore();

// From the top of a part to the end of its charts, pixels of the page.
function bounds(name) {
  const [part, view] = [document.getElementById(name), document.querySelector(`#${name} .view`)];
  return [part.getBoundingClientRect().top + scrollY, view.getBoundingClientRect().bottom + scrollY];
}

// For a reader's console, and for the tests.
window.lab = { Gain, Stream, Mirage, Budget, GainPart, StreamPart, MiragePart, BudgetPart, Charts, panels: Address.panels, bounds };
window.lab.ready = Charts.begin().then(() => Charts.settled());
