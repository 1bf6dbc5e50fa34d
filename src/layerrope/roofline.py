"""Memory, communication and step time of a model on many devices, on paper   (roofline: Williams et al. 2009).

Counts come from `account`, a device's rates from a table. Training is that of `layerrope.ranks.sharding`: FSDP2 in fp32
over all devices, bf16 products, each layer's activations recomputed where they do not fit. Products and the traffic of
what lies between them take turns, collectives run beside both: a step takes the longer of the two, and the optimiser.

Dimensions: N devices, P parameters, d width, L layers, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from layerrope.accounting import STATE, activation_bytes, flops_per_token
from layerrope.config import ModelConfig
from layerrope.errors import InputError
from layerrope.model import LM

MOST_DEVICES, MOST_TOKENS = 2**30, 2**40
"""Of a plan, and of a step: every way to divide its sequences is looked at."""
MOVES = 4
"""Times that what the backward pass keeps crosses the memory: written and read, and its gradient written and read.
Counted uncompiled, so an upper bound: a compiler fuses some of it away."""

ALL_REDUCE = 2
"""Times that a sum over a ring goes through the links: its parts are reduced, then gathered."""


@dataclass(frozen=True)
class Device:
    """Rates of one device, in FLOPs and bytes a second. `products` is the share of the peak that products reach."""

    peak: float
    products: float
    memory: float
    """bytes"""
    bandwidth: float
    """of its memory"""
    inside: float
    """that it sends to its neighbours within a machine"""
    between: float
    """that it sends to other machines"""
    per_machine: int
    hop: float
    """seconds to pass a message on to the next device of a ring"""


DEVICES: dict[str, Device] = {
    "a100": Device(312e12, 0.65, 80e9, 2.04e12, 300e9, 25e9, 8, 3e-6),
    "h100": Device(989e12, 0.65, 80e9, 3.35e12, 450e9, 50e9, 8, 3e-6),
    "h200": Device(989e12, 0.65, 141e9, 4.8e12, 450e9, 50e9, 8, 3e-6),
}
"""Vendors' sheets: dense bf16, NVLink in one direction, one network card a device (400 Gb/s, A100: 200 Gb/s). The share
of the peak and the time of a hop are assumptions; `benchmarks/gpu.py` measures the first."""


@dataclass(frozen=True)
class Plan:
    """One training step on N devices. Bytes, FLOPs and seconds are one device's."""

    devices: int
    sequences: int
    """of a device and step"""
    splits: int
    """parts in which they run; weights are gathered and gradients reduced for each"""
    recomputes: bool
    """are activations recomputed in the backward pass?"""
    model_flops: float
    state_bytes: float
    """its shard of weights, gradients and moments"""
    gathered_bytes: float
    """whole weights and gradients: of two layers, the embedding and the head; bf16 copies that autograd keeps"""
    activation_bytes: float
    compute_seconds: float
    communication_seconds: float
    optimizer_seconds: float
    sent_bytes: float
    """through its links: weights gathered forward and backward, gradients reduced"""
    gains_bytes: float
    """of that, the gain table's parameters"""
    gains_seconds: float
    """of communication: two more collectives a part"""
    gate_seconds: float
    """of compute: the traffic of what the write gates keep"""
    device: Device

    @property
    def bytes(self) -> float:
        return self.state_bytes + self.gathered_bytes + self.activation_bytes

    @property
    def fits(self) -> bool:
        return self.bytes <= self.device.memory

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.communication_seconds) + self.optimizer_seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs a second over the peak; recomputation does not count."""
        return self.model_flops / self.seconds / self.device.peak

    def as_dict(self) -> dict[str, float]:
        derived = {"bytes": self.bytes, "fits": self.fits, "seconds": self.seconds, "mfu": self.mfu}
        return {name: value for name, value in vars(self).items() if name != "device"} | derived


COLUMNS: dict[str, Callable[[Plan], str]] = {
    "devices": lambda p: str(p.devices),
    "sequences": lambda p: str(p.sequences) + (f" in {p.splits} parts" if p.splits > 1 else ""),
    "recomputed": lambda p: "yes" if p.recomputes else "no",
    "state": lambda p: f"{p.state_bytes / 1e9:.1f} GB",
    "gathered": lambda p: f"{p.gathered_bytes / 1e9:.1f} GB",
    "activations": lambda p: f"{p.activation_bytes / 1e9:.1f} GB" + ("" if p.fits else ": too much"),
    "sent": lambda p: f"{p.sent_bytes / 1e9:.1f} GB",
    "compute": lambda p: f"{1e3 * p.compute_seconds:.0f} ms",
    "communication": lambda p: f"{1e3 * p.communication_seconds:.0f} ms",
    "step": lambda p: f"{1e3 * p.seconds:.0f} ms",
    "MFU": lambda p: f"{p.mfu:.0%}",
}
"""A plan's line in tables, a device's numbers."""


# ------------------------------------------------------------------------------------------------------------- counts
@dataclass(frozen=True)
class Parts:
    """Parameters by FSDP group: each layer, the gains, and the rest (embedding, last norm, head)."""

    layer: int
    n_layer: int
    gains: int
    rest: int

    @property
    def all(self) -> int:
        return self.layer * self.n_layer + self.gains + self.rest

    @property
    def gathered(self) -> int:
        """Parameters gathered for one forward and backward pass: layers twice, everything else once."""
        return 2 * self.layer * self.n_layer + self.gains + self.rest


@lru_cache(maxsize=256)
def parts_of(config: ModelConfig) -> Parts:
    """Counted on a meta build; layers of one model may differ (Mix-LN), so a layer's is their mean, rounded up."""
    with torch.device("meta"):
        model = LM(config)
    layers = sum(p.numel() for p in model.layers.parameters())
    gains = 0 if model.gains is None else sum(p.numel() for p in model.gains.parameters())
    rest = sum(p.numel() for p in model.parameters()) - layers - gains
    return Parts(-(-layers // config.n_layer), config.n_layer, gains, rest)


def collective_seconds(n_bytes: float, count: int, n: int, device: Device) -> float:
    """Time of `count` gathers or reductions that move `n_bytes` (whole tensors) in all, in a ring over n devices."""
    if n == 1:
        return 0.0
    machines = -(-n // device.per_machine)
    rate = device.inside if machines == 1 else min(device.inside, device.between * device.per_machine)
    return n_bytes * (n - 1) / n / rate + count * device.hop * (min(n, device.per_machine) - 1 + machines - 1)


# --------------------------------------------------------------------------------------------------------------- plan
def plan(config: ModelConfig, n: int, device: Device, batch_tokens: int = 2**20) -> Plan:
    """A step of `batch_tokens` on `n` devices: the fastest that fits, of all ways to split a device's sequences into
    parts, with and without recomputing activations. Every device has at least one sequence.

    Raises:
        InputError: fewer than one device or token, or more than `MOST_DEVICES` or `MOST_TOKENS`.
    """
    if n < 1 or batch_tokens < 1:
        raise InputError(f"a plan needs at least one device and one token: got {n} and {batch_tokens}")
    if n > MOST_DEVICES or batch_tokens > MOST_TOKENS:
        raise InputError(
            f"a plan is for at most {MOST_DEVICES:,} devices and {MOST_TOKENS:,} tokens: got {n} and {batch_tokens}"
        )
    sequences = max(1, round(batch_tokens / n / config.seq_len))
    ways = [(k, recomputes) for k in _divisors(sequences) for recomputes in (False, True)]
    found = [_plan(config, n, device, sequences, k, recomputes) for k, recomputes in ways]
    return min(found, key=lambda p: (not p.fits, p.seconds if p.fits else p.bytes))


def _divisors(n: int) -> list[int]:
    small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


def _plan(config: ModelConfig, n: int, device: Device, sequences: int, splits: int, recomputes: bool) -> Plan:
    tokens, parts = sequences * config.seq_len, parts_of(config)
    collectives = splits * (3 * config.n_layer + 2 + 2 * (parts.gains > 0))
    moved = 4 * (parts.gathered + parts.all) * splits
    compute = _compute(config, tokens, recomputes, device)
    gain_bytes = 8 * parts.gains * splits
    return Plan(
        devices=n,
        sequences=sequences,
        splits=splits,
        recomputes=recomputes,
        model_flops=flops_per_token(config) * tokens,
        state_bytes=STATE * parts.all / n,
        gathered_bytes=_gathered_bytes(parts, recomputes),
        activation_bytes=_activations(config, recomputes) * tokens / splits,
        compute_seconds=compute,
        communication_seconds=collective_seconds(moved, collectives, n, device),
        optimizer_seconds=7 * 4 * parts.all / n / device.bandwidth,  # reads four numbers a parameter, writes three
        sent_bytes=moved * (n - 1) / n,
        gains_bytes=gain_bytes * (n - 1) / n,
        gains_seconds=collective_seconds(gain_bytes, 2 * splits, n, device) if parts.gains else 0.0,
        gate_seconds=compute - _compute(replace(config, scheme="prenorm"), tokens, recomputes, device),
        device=device,
    )


def _gathered_bytes(parts: Parts, recomputes: bool) -> float:
    """Weights and gradients of two layers, and of what is not in layers, in fp32. Where nothing is recomputed, autograd
    keeps the bf16 copies of the layers' matrices too, whose fp32 originals are long freed."""
    copies = 0 if recomputes else 2 * parts.layer * parts.n_layer
    return 8 * (2 * parts.layer + parts.rest) + 4 * parts.gains + copies


def _compute(config: ModelConfig, tokens: int, recomputes: bool, device: Device) -> float:
    """Seconds of products and of the traffic between them; the forward pass once more where it is recomputed."""
    again = 4 / 3 if recomputes else 1.0
    flops = again * flops_per_token(config) * tokens
    traffic = MOVES * 0.5 * _kept(config) * tokens  # bf16, half of what is counted
    return flops / device.peak / device.products + traffic / device.bandwidth


def _activations(config: ModelConfig, recomputes: bool) -> float:
    """Bytes a token kept for the backward pass in bf16; recomputed: each layer's fp32 input, and one layer's inside."""
    if not recomputes:
        return 0.5 * _kept(config)
    return 0.5 * _kept_by_one(config) + 4 * config.d_model * config.n_layer


def _kept_by_one(config: ModelConfig) -> float:
    """Bytes a token that one layer keeps, and the head."""
    try:
        return _kept(replace(config, n_layer=1))
    except InputError:  # an option that only the full depth satisfies: Pre-Norm's layer, and the scheme's mean surplus
        plain = replace(config, scheme="prenorm")
        return _kept(replace(plain, n_layer=1)) + (_kept(config) - _kept(plain)) / config.n_layer


@lru_cache(maxsize=256)
def _kept(config: ModelConfig) -> int:
    return activation_bytes(config)


# -------------------------------------------------------------------------------------- gains in the other dimensions
def gains_elsewhere(config: ModelConfig, tokens: int) -> dict[str, float]:
    """Bytes that a gain table adds to tensor and pipeline parallelism, and what the stream itself sends there.

    Tensor parallel: the gains lie whole on every device, and their gradient is summed once a step; the stream of
    `tokens` positions is summed behind attention and MLP, and its gradient before them. Pipeline: stage 0 owns the
    gains and sends the table down with the stream, so each gradient comes back the same way; counted one way, in fp32.
    """
    parts = parts_of(config)
    table = 4 * 4 * config.n_layer * config.d_model if parts.gains else 0
    return {
        "tp_gradient_bytes": ALL_REDUCE * 4 * parts.gains,
        "tp_stream_bytes": ALL_REDUCE * 4 * config.n_layer * 2 * tokens * config.d_model,  # four sums a layer, in bf16
        "pp_table_bytes": table,
        "pp_stream_bytes": 4 * tokens * config.d_model,
    }


def plans(config: ModelConfig, devices: Sequence[int], device: Device, batch_tokens: int = 2**20) -> list[Plan]:
    """`plan` for each number of devices."""
    return [plan(config, n, device, batch_tokens) for n in devices]
