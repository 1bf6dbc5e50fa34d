"""Write docs/schemes.md: every scheme with its rule, its cost and its source, from the code and from a bench record.

layerrope bench schemes --batch-size 2 --rounds 5 --out results/bench/schemes.json
python benchmarks/scheme_page.py
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from layerrope import LM, ModelConfig, account, schemes, tiers
from layerrope.exporting.folding import obstacles

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "bench" / "schemes.json"
PAGE = ROOT / "docs" / "schemes.md"
SHAPE = tiers["130m"]
NOTABLE = 1.1
"""Ratios of the step's own memory from which a scheme is named."""

HEAD = """# Schemes

Every depth scheme of the package, generated from the code by `benchmarks/scheme_page.py`; do not edit by hand.
`A+layerrope` is A with LayerRoPE's gains; options follow a colon (`hc:n=2`). What each paper leaves open:
[fidelity](fidelity.md).

| scheme | rule | parameters | FLOPs | kept | step | peak | stock form | source |
|---|---|---|---|---|---|---|---|---|
"""

FOOT = """
- **parameters**: beyond Pre-Norm's, at 130m (134,105,856).
- **FLOPs**: of matrix products beyond Pre-Norm's at 130m, T 256, forward pass; elementwise work is not in it.
- **kept**: activations kept for the backward pass relative to Pre-Norm, at 130m, uncompiled, fp32.
- **step**: time of a compiled training step relative to Pre-Norm, median of {rounds} paired rounds at width {d_model},
  {n_layer} layers, T {seq_len}, batch {batch_size}, {threads} thread, {dtype} (`results/bench/schemes.json`).
- **peak**: memory at the most of that step relative to Pre-Norm's {plain_peak:.0f} MB: weights and Adam's moments, held
  between steps, and activations, gradients and temporaries on top, counted where tensors are allocated. Of what comes
  on top alone: {own}.
- **stock form**: the transformers class that a trained model folds into (`layerrope export`), or what is in the way.
{speedups}{peers}"""


def products(config: ModelConfig) -> int:
    """FLOPs of the matrix products of one forward pass over one sequence, counted on fake tensors."""
    with FakeTensorMode():
        model = LM(config)
        ids = torch.zeros(1, config.seq_len, dtype=torch.long)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(ids)
    return counter.get_total_flops()


def stock_form(config: ModelConfig) -> str:
    """What a model of this scheme folds into, in words."""
    with torch.device("meta"):
        model = LM(replace(config, n_layer=8))
    found = obstacles(model)
    if found:
        return f"own type ({found[0].split(':')[-1].strip()})"
    post = model.layers[0].get_submodule("attn.branch.post")
    return "`LlamaForCausalLM`" if type(post).__name__ == "Gate" else "`Glm4ForCausalLM`"


def row(name: str, steps: dict[str, float], peaks: dict[str, float], plain_flops: int, plain_kept: int) -> str:
    """One line of the table."""
    config = replace(SHAPE, scheme=name)
    counted = account(config)
    scheme = schemes[name]
    cells = (
        f"`{name}`",
        f"`{scheme.rule}`",
        f"{counted.scheme_parameters:+,}",
        f"{products(config) / plain_flops - 1:+.2%}",
        f"{counted.activation_bytes_per_token / plain_kept:.2f}",
        f"{steps[name]:.2f}" if name in steps else "not measured",
        f"{peaks[name]:.2f}" if name in peaks else "not measured",
        stock_form(config),
        scheme.source,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    """The whole page."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    steps = {r["name"]: r["ratio"] for r in record["rows"]}
    plain = products(replace(SHAPE, scheme="prenorm"))
    kept = account(replace(SHAPE, scheme="prenorm")).activation_bytes_per_token
    memory = {r["name"]: r for r in record["memory"]["rows"]}
    peaks = {name: r["ratio"] for name, r in memory.items()}
    lines = [row(name, steps, peaks, plain, kept) for name in schemes]
    speedups = "".join(
        f"- In the same run, {k}: {v:.2f} times the tokens per second.\n" for k, v in record["speedups"].items()
    )
    first = memory["prenorm"]
    own = {name: r["step_bytes"] / first["step_bytes"] for name, r in memory.items()}
    facts = {
        "speedups": speedups,
        "plain_peak": (first["state_bytes"] + first["step_bytes"]) / 1e6,
        "own": ", ".join(f"{own[name]:.2f} ({name})" for name in schemes if own[name] > NOTABLE),
        "peers": "".join(
            f"- Peak memory of {name}: {peaks[name]:.2f}, of the step's own part {own[name]:.2f}.\n"
            for name in memory
            if name not in schemes
        ),
    }
    return HEAD + "\n".join(lines) + "\n" + FOOT.format(**record["settings"], **facts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
