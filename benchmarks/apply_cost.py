"""What `layerrope.apply` costs: training steps of a Llama with and without gains, compiled, in paired repetitions.

    python benchmarks/apply_cost.py [rounds] [width] [layers]

Prints one line of JSON, with the machine's load before and after (a load of N means N processes that want a core).
Ratios of CPU time are steadier than wall clock where other work shares the machine. Needs transformers. The record:

    python benchmarks/apply_cost.py 20 > results/bench/apply.json
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

import layerrope
from layerrope.bench.paired import paired
from layerrope.comparing.report import processor

THREADS, BATCH, LENGTH, VOCAB = 1, 4, 128, 512


def step(model: Any, ids: torch.Tensor) -> Callable[[], None]:
    """One compiled training step (AdamW) of `model`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model)

    def run() -> None:
        compiled(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def main(rounds: int = 30, width: int = 256, layers: int = 6) -> None:
    torch.set_num_threads(THREADS)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
    )
    ids = torch.randint(VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    contenders = {}
    for name in ("plain", "gains"):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        if name == "gains":
            layerrope.apply(model)
        contenders[name] = step(model, ids)
    before = os.getloadavg()[0]
    timings = paired(contenders, rounds)
    found: dict[str, Any] = {}
    for kind in ("cpu", "wall"):
        with_gains, plain = (getattr(timings[name], kind) for name in ("gains", "plain"))
        ratios = [g / p for g, p in zip(with_gains, plain, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        found |= {f"{kind}_ratio": round(median, 4), f"{kind}_quartiles": [round(low, 4), round(high, 4)]}
    found |= {"rounds": rounds, "width": width, "layers": layers, "batch": BATCH, "length": LENGTH, "threads": THREADS}
    load = [round(before, 1), round(os.getloadavg()[0], 1)]
    found |= {"cores": os.cpu_count(), "load_before_after": load, "processor": processor()}
    print(json.dumps(found | {"torch": torch.__version__, "transformers": transformers.__version__}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
