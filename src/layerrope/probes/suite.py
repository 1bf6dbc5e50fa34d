"""All probes on one evaluation set: which there are, what they cost, and what of a scheme compares with others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from layerrope.errors import InputError, one_of
from layerrope.norms import Gate
from layerrope.probes.affine import affine
from layerrope.probes.angles import angle_matrix, angles
from layerrope.probes.collapse import RANKS, collapse
from layerrope.probes.gradients import gradients
from layerrope.probes.jacobian import jacobian_distance
from layerrope.probes.lens import logit_lens
from layerrope.probes.sizes import gains, stream_sizes, updates
from layerrope.probes.surgery import drop, swap
from layerrope.probes.trunk import Batches, Trunk, depth_of, n_counted, n_scored, window_losses
from layerrope.residual import Copies, Mixed, PostNorm, WithX0
from layerrope.training.evaluation import undisturbed
from layerrope.training.kinds import Model

SCHEMA = "layerrope.probe/1"


@dataclass(frozen=True)
class Options:
    """What some probes can do more, or less, of."""

    vectors: int = 8
    """directions of the Jacobian's estimate; 0: all of them, exact"""
    every_pair: bool = False
    """swap any two layers, not only neighbours"""
    seed: int = 0
    """of the directions"""


Measure: TypeAlias = Callable[[Model, Batches, Options], dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One probe of the table."""

    measure: Measure
    gloss: str
    cheap: bool = False
    """run by `--probe-every` while training: about one forward pass or less"""


def _plain(measure: Callable[[Model, Batches], dict[str, Any]]) -> Measure:
    return lambda model, batches, options: measure(model, batches)


PROBES: dict[str, Row] = {
    "stream": Row(_plain(stream_sizes), "size and variance of the stream", cheap=True),
    "update": Row(_plain(updates), "what each sublayer writes, relative to what it read", cheap=True),
    "angle": Row(_plain(angles), "angle that each layer turns the stream by", cheap=True),
    "matrix": Row(_plain(angle_matrix), "angle between the streams of any two depths"),
    "drop": Row(_plain(drop), "loss without each layer"),
    "swap": Row(lambda model, batches, o: swap(model, batches, o.every_pair), "loss with two layers exchanged"),
    "lens": Row(_plain(logit_lens), "loss and KL of the head read at each depth"),
    "jacobian": Row(
        lambda model, batches, o: jacobian_distance(model, batches, o.vectors, o.seed),
        "distance of each layer's Jacobian from the identity",
    ),
    "gradient": Row(_plain(gradients), "gradient in each layer's weights and in the stream", cheap=True),
    "collapse": Row(_plain(collapse), "how alike tokens become, and the rank they span"),
    "affine": Row(_plain(affine), "loss with each layer replaced by its best affine map, on held-out text"),
    "gains": Row(_plain(gains), "gains on what sublayers read and write", cheap=True),
}
"""Every probe by name, in the order of the page."""

CHEAP = tuple(name for name, row in PROBES.items() if row.cheap)


def probe(
    model: Model, batches: Batches, names: Iterable[str] = tuple(PROBES), options: Options | None = None
) -> dict[str, Any]:
    """What the probes find on `batches`; the model, its gradients, its mode and torch's random state stay as they are.

    Args:
        model: on any device, in any precision; sums are taken in float64.
        batches: [(ids, targets), ...], each (B, T), or [(images, labels), ...], on the model's device.
        names: of `PROBES`.

    Returns:
        A document of plain data: `probes` (name -> what that probe returns), `seconds` (name -> its cost),
        `pass_seconds` (one plain evaluation of the same batches), `loss`, counts, and `not_comparable`
        ("probe.field" -> why that must not be compared with other schemes).

    Raises:
        InputError: an unknown probe, or no counted token.
    """
    chosen = [name for name in PROBES if name in {one_of("probe", name, PROBES) for name in names}]
    if not batches or not n_scored(batches):
        raise InputError("there is no counted token to probe on: give more text")
    options = options or Options()
    found, seconds = {}, {}
    with undisturbed(model):
        loss, once = _timed(lambda: evaluation_loss(model, batches))
        for name in chosen:
            found[name], seconds[name] = _timed(lambda name=name: PROBES[name].measure(model, batches, options))
    return {
        "schema": SCHEMA,
        "kind": getattr(model.config, "kind", "decoder"),
        "scheme": model.config.scheme,
        "n_layer": depth_of(model),
        "d_model": model.config.d_model,
        "embed_std": getattr(model.config, "embed_std", None),
        "init_std": getattr(model.config, "init_std", None),
        "windows": sum(len(ids) for ids, _ in batches),
        "tokens": n_counted(model, batches),
        "loss": loss,
        "probes": found,
        "seconds": seconds,
        "pass_seconds": once,
        "not_comparable": not_comparable(model),
    }


class TrainingProbe:
    """The cheap probes as `train` calls them: on one batch every `probe_every` steps, with their cost in seconds.

    The angle matrix and the probes that run the model many times are left to `layerrope probe`.
    """

    def __init__(self, names: Iterable[str] = CHEAP) -> None:
        self.names = tuple(names)

    def __call__(self, model: Model, ids: Tensor, targets: Tensor) -> dict[str, Any]:
        began = time.perf_counter()
        batches = [(ids, targets)]
        found = {name: PROBES[name].measure(model, batches, Options()) for name in self.names}
        _wait(ids)
        return {**found, "tokens": n_counted(model, batches), "seconds": time.perf_counter() - began}


def training_cost(rows: Iterable[dict[str, Any]]) -> tuple[float, float] | None:
    """(seconds, share of the run's time) that probing took, from the lines of metrics.jsonl; None where none did.

    The run's time is that of the last line: evaluations count, but not the one at the end.
    """
    lines = list(rows)
    spent = sum(line["probes"].get("seconds", 0.0) for line in lines if "probes" in line)
    # a line is written before its own probing is added to the clock
    total = lines[-1]["seconds"] + lines[-1].get("probes", {}).get("seconds", 0.0) if lines else 0.0
    return (spent, spent / total) if spent and total else None


@torch.no_grad()
def evaluation_loss(model: Model, batches: Batches) -> float:
    """Mean loss in nats per counted token or image."""
    total = sum(
        float(window_losses(model, (trunk := Trunk.of(model, ids)).stream(trunk.states()[-1]), targets).sum())
        for ids, targets in batches
    )
    return total / n_scored(batches)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def _wait(like: Tensor) -> None:
    if like.device.type == "cuda":
        torch.cuda.synchronize(like.device)


# ------------------------------------------------------------------------------------------------- what compares
_SOURCES = "there is no running sum: this is a softmax mix of sources, small because it is a mean of them"
_MIX = "the stream is the mix that the output's query makes of the sources so far, not what the next layer reads"
_LESS = "several streams, seen only through what the final norm would read; streams that part and meet again are not"


def not_comparable(model: Model) -> dict[str, str]:
    """ "probe.field" -> why this scheme's numbers there must not be compared with those of another."""
    return {field: why for holds, fields, why in _RULES if holds(model) for field in fields}


def _ends(kind: type) -> Callable[[Model], bool]:
    return lambda model: isinstance(model.ends, kind)


def _summed(model: Model) -> bool:
    return isinstance(model.ends, Copies) and not model.ends.mean


def _post_norms(model: Model) -> list[PostNorm]:
    return [m for m in model.modules() if isinstance(m, PostNorm)]


def _post(model: Model) -> bool:
    return bool(_post_norms(model))


def _scaled_add(model: Model) -> bool:
    return any(norm.alpha != 1 for norm in _post_norms(model))


def _no_final_norm(model: Model) -> bool:
    return isinstance(model.norm, Gate)


_RULES: tuple[tuple[Callable[[Model], bool], tuple[str, ...], str], ...] = (
    (_ends(Mixed), ("stream.rms", "stream.variance"), _SOURCES),
    (_ends(Mixed), ("update.ratio", "update.cosine"), "what is written is not added to what was read: " + _SOURCES),
    (_ends(Mixed), ("angle.neighbour", "angle.block_influence", "matrix.matrix", "lens.loss", "lens.kl"), _MIX),
    (_ends(Mixed), tuple(f"collapse.{name}" for name in RANKS), _MIX),
    (_ends(Mixed), ("jacobian.distance", "gradient.stream", "affine.ratio"), "there is no stream to displace"),
    (_ends(Mixed), ("swap.change",), "layer 0 has no query of its own: moved, it reads the embedding alone"),
    (_summed, ("stream.rms", "stream.variance"), "the sum of n streams, which starts at n times the embedding"),
    (_ends(Copies), ("update.ratio", "update.cosine"), "what is written goes to each stream with a weight of its own"),
    (_ends(Copies), ("angle.neighbour", "angle.block_influence", "matrix.matrix"), _LESS),
    (_ends(Copies), ("jacobian.distance", "gradient.stream"), "all streams are displaced together, not apart"),
    (_ends(WithX0), ("update.ratio",), "measured against r h + z x0, the stream after it was rescaled"),
    (_scaled_add, ("update.ratio",), "the stream is multiplied by alpha before the add, which the ratio leaves out"),
    (_post, ("stream.rms", "stream.variance"), "the norm after the add sets the size of the stream"),
    (_no_final_norm, ("lens.loss", "lens.kl"), "the head reads the stream without a final norm, as in the model"),
)
