"use strict";
// Part 4: what a scheme costs on a shape, and what training it takes.
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
  const size = (id, label, max) => ({
    id,
    label,
    min: 1,
    max,
    step: 1,
    log: true,
    whole: true,
    start: tiers[USUAL][id],
  });
  const FIELDS = [
    { id: "tier", label: "Shape", options: { ...names(), own: "a shape of its own" }, start: USUAL },
    size("n_layer", "Layers", 2048),
    { ...size("d_model", "Width", 65536), min: 2 },
    size("d_ff", "Width of the MLP", 262144),
    size("vocab_size", "Vocabulary", 1048576),
    size("seq_len", "Sequence length", 1048576),
    { id: "ratio", label: "Tokens a parameter", min: 0.1, max: 10000, step: 0.1, log: true, start: 80 },
    {
      id: "device",
      label: "Machine",
      options: Object.fromEntries(Object.entries(DEVICES).map(([k, v]) => [k, v[0]])),
      start: "h100",
    },
    { id: "teraflops", label: "Peak, TFLOP/s", min: 0.01, max: 10000, step: 0.01, log: true, start: 989 },
    { id: "devices", label: "Machines", min: 1, max: 65536, step: 1, log: true, whole: true, start: 8 },
    { id: "used", label: "Of the peak, %", min: 1, max: 100, step: 1, start: 40 },
  ];
  let panel = null;

  function names() {
    return Object.fromEntries(
      Object.entries(tiers).map(([name, t]) => [name, `${name}: ${t.n_layer} layers, width ${whole(t.d_model)}`]),
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
    const [scale, letter] = [
      [1e12, "T"],
      [1e9, "B"],
      [1e6, "M"],
      [1e3, "K"],
    ].find(([s]) => value >= s) ?? [1, ""];
    return `${show(value / scale)} ${letter}`.trim();
  }
  const time = (hours) =>
    hours < 1 ? `${show(60 * hours, 3)} min` : hours < 48 ? `${show(hours, 3)} h` : `${show(hours / 24, 3)} days`;

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
      rows,
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
    const added = rows.map((row) => ({
      scheme: row.name,
      parameters: row.scheme_parameters,
      sign: row.scheme_parameters < 0 ? "fewer" : "more",
    }));
    Charts.update("added", { added });
  }

  function begin() {
    panel = new Panel("budget", FIELDS, changed);
    Address.panels.push(panel);
    panel.assign({});
  }

  return { begin, schemes, tiers };
})();
