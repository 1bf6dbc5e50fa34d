"""What a study would cost: parameters, tokens, FLOPs, memory and hours of every run, without training one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from layerrope import roofline
from layerrope.accounting import STATE, activation_bytes, count_parameters, flops_per_token
from layerrope.errors import InputError, one_of
from layerrope.study import Run, label

DEVICES: dict[str, float] = {
    "cpu-core": 90e9,
    **{name: device.peak for name, device in roofline.DEVICES.items()},
    "b200": 2250e12,
    "l40s": 362e12,
    "rtx4090": 165e12,
}
"""Peak FLOPs a second: of GPUs in dense bf16 by the makers' data sheets (fp32 sums, no sparsity), of one CPU core as
fp32 matrix products reach it here (docs/log.md)."""


@dataclass(frozen=True)
class Cost:
    """What one run takes."""

    run: str
    """its values on the study's axes"""
    parameters: int
    tokens: int
    flops: float
    """forward and backward, of the Pre-Norm model of this shape (`layerrope.account`)"""
    state_bytes: int
    """weights, gradients and Adam's two moments in fp32"""
    sequence_bytes: int
    """what the forward pass of the Pre-Norm shape keeps of one sequence in fp32; times those of a micro-batch"""
    hours: float
    """on one of the named GPU"""

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.parameters


def costs(runs: Sequence[Run], gpu: str = "h100", utilisation: float = 0.4) -> list[Cost]:
    """The cost of every run.

    Args:
        runs: of a study.
        gpu: a name in `DEVICES`.
        utilisation: share of its peak that training reaches (model FLOPs utilisation).

    Raises:
        InputError: an unknown GPU, or a share that is none.
    """
    peak = DEVICES[one_of("GPU", gpu, DEVICES)]
    if not 0 < utilisation <= 1:
        raise InputError(f"utilisation is a share of the peak, above 0 and at most 1: got {utilisation:g}")
    return [_cost(run, peak * utilisation) for run in runs]


def _cost(run: Run, flops_per_second: float) -> Cost:
    config = run.config
    plain = replace(config.model, scheme="prenorm")
    parameters = count_parameters(config.model)[0]
    tokens = config.steps * config.tokens_per_step
    flops = float(flops_per_token(plain) * tokens)
    kept = _activations(plain) * config.data.seq_len
    return Cost(label(run), parameters, tokens, flops, STATE * parameters, kept, flops / flops_per_second / 3600)


_activations = lru_cache(maxsize=64)(activation_bytes)
"""A study has few shapes and many runs."""


def cost_rows(found: Sequence[Cost]) -> list[dict[str, str]]:
    """A row a run, and the total."""
    rows = [
        {
            "run": c.run,
            "parameters": f"{c.parameters:,}",
            "tokens": f"{c.tokens:,}",
            "tokens/parameter": f"{c.tokens_per_parameter:.3g}",
            "FLOPs": f"{c.flops:.3g}",
            "training state": _bytes(c.state_bytes),
            "a sequence": _bytes(c.sequence_bytes),
            "hours": f"{c.hours:.3g}",
        }
        for c in found
    ]
    return [*rows, _total(found)]


def _total(found: Sequence[Cost]) -> dict[str, str]:
    return {
        "run": f"total of {len(found)} runs",
        "parameters": "",
        "tokens": f"{sum(c.tokens for c in found):,}",
        "tokens/parameter": "",
        "FLOPs": f"{sum(c.flops for c in found):.3g}",
        "training state": "",
        "a sequence": "",
        "hours": f"{sum(c.hours for c in found):.3g}",
    }


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def cost_document(found: Sequence[Cost], gpu: str, utilisation: float) -> dict[str, Any]:
    """The costs as JSON data."""
    return {
        "schema": "layerrope.study.cost/1",
        "gpu": gpu,
        "utilisation": utilisation,
        "runs": [asdict(c) for c in found],
        "total": {
            "runs": len(found),
            "tokens": sum(c.tokens for c in found),
            "flops": sum(c.flops for c in found),
            "hours": sum(c.hours for c in found),
        },
    }
