"use strict";
// Part 2: the stream under four schedules.
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
    Object.fromEntries(
      Object.entries(schedules(values, n)).map(([k, g]) => [k, last(Stream.relativeUpdate(g, values.start))]),
    );

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
      [
        `power law over Pre-Norm, last of ${n}`,
        at.n["power law"] / at.n["Pre-Norm"],
        `${show(at.n["power law"] / at.n["Pre-Norm"])} ×`,
      ],
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
      rows,
    );
    draw(made, values.start);
  }

  function draw(made, start) {
    const curve = (of) =>
      Object.entries(made).flatMap(([schedule, writes]) =>
        of(writes)
          .map((value, l) => ({ block: l + 1, value, schedule }))
          .filter((row) => row.value > 0 && row.value < Infinity),
      );
    const show = (id, rows) => {
      const ends = Object.keys(made)
        .map((name) => last(rows.filter((row) => row.schedule === name)))
        .filter(Boolean);
      Charts.update(id, { blocks: rows, ends });
    };
    show(
      "updates",
      curve((writes) => Stream.relativeUpdate(writes, start)),
    );
    show(
      "variances",
      curve((writes) => Stream.variance(writes, start).slice(1)),
    );
  }

  function begin() {
    panel = new Panel("stream", FIELDS, changed);
    Address.panels.push(panel);
    panel.assign({});
  }

  return { begin, schedules };
})();
