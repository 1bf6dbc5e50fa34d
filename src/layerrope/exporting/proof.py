"""The proof that an exported folder computes what its source does: logits and every layer's stream, compared.

Dimensions: B batch, T position, V vocabulary, L layers.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from layerrope.errors import InputError, one_of, reason
from layerrope.exporting.stock import from_stock, read_stock_config
from layerrope.exporting.stock_forward import stock_forward
from layerrope.files import read_json
from layerrope.model import LM
from layerrope.norms import upcast

TOLERANCE = 1e-4
"""Largest difference allowed in fp32, times the largest absolute value where that is above 1."""
POSITIONS = 128
READERS = ("auto", "transformers", "plain")


@dataclass(frozen=True)
class Trace:
    """What a model does with the test ids: logits (B, T, V), and the state after each layer."""

    logits: Tensor
    states: list[list[Tensor]]
    tables: list[Tensor] | None = None
    """every embedding (rows, D), whole, since the test ids reach some rows only; None: not looked at"""


@dataclass(frozen=True)
class Difference:
    """Two traces compared."""

    max_difference: float
    """of the logits, over all positions"""
    tolerance: float
    layers: tuple[float, ...]
    """of the state after each layer"""
    first: str | None
    """the first place that differs, or None"""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def sample_ids(vocab_size: int, positions: int, sequences: int = 2) -> Tensor:
    """Random ids (B, T), the same every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size, (sequences, positions), generator=generator)


# -------------------------------------------------------------------------------------------------------- traces
def trace(layers: nn.ModuleList, logits: Callable[[], Tensor], tables: list[Tensor] | None = None) -> Trace:
    """The logits, with what each of `layers` gave on the way."""
    states: list[list[Tensor]] = []

    def keep(layer: nn.Module, given: Any, made: Any) -> None:
        states.append([t.detach() for t in pytree.tree_leaves(made) if isinstance(t, Tensor)])

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        with torch.no_grad():
            return Trace(logits(), states, tables)
    finally:
        for hook in hooks:
            hook.remove()


def trace_lm(model: LM, ids: Tensor) -> Trace:
    """The trace of a copy of `model` in fp32, in evaluation mode."""
    model = copy.deepcopy(model).float().eval()
    return trace(model.layers, lambda: model(ids.to(model.embed.weight.device)), embeddings(model))


def embeddings(model: nn.Module) -> list[Tensor]:
    """The weight of every embedding in `model`."""
    return [module.weight.detach() for module in model.modules() if isinstance(module, nn.Embedding)]


def trace_folder(folder: Path, ids: Tensor, reader: str) -> Trace:
    """The trace of an exported folder in fp32, read by `reader`. Raises InputError where it cannot take these ids."""
    with same_kind(folder):
        return {"transformers": _by_transformers, "plain": _by_plain}[reader](folder, ids)


@contextlib.contextmanager
def same_kind(what: object) -> Iterator[None]:
    """Inside, `what` is read as a model like its source. Raises InputError where it turns out to be none."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever a reader says of files that are damaged, missing or of other shapes
        raise InputError(f"{what} cannot be read as a model like its source ({reason(error)})") from error


def choose_reader(reader: str) -> str:
    """`reader`, with "auto" resolved: transformers where it is installed."""
    one_of("reader", reader, READERS)
    if reader != "auto":
        return reader
    return "plain" if importlib.util.find_spec("transformers") is None else "transformers"


def _by_transformers(folder: Path, ids: Tensor) -> Trace:
    from layerrope.interop.hf import load_stock

    model = load_stock(folder)
    layers = model.model.layers
    return trace(layers, lambda: model(input_ids=ids, use_cache=False).logits, embeddings(model))


def _by_plain(folder: Path, ids: Tensor) -> Trace:
    config = read_json(folder / "config.json")
    if config["model_type"] == "layerrope":
        from layerrope.loading import load_lm

        return trace_lm(load_lm(folder).model, ids)
    tensors = read_shards(folder)
    from_stock(*read_stock_config(config), tensors)  # raises where one is missing, left over, or of another shape
    logits, streams = stock_forward(config, tensors, ids)
    return Trace(logits, [[h] for h in streams], [tensors["model.embed_tokens.weight"]])


def read_shards(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's safetensors files."""
    index = folder / "model.safetensors.index.json"
    files = (
        sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    )
    return {name: t for file in files for name, t in load_file(folder / file).items()}


# ----------------------------------------------------------------------------------------------------- comparing
def compare(ours: Trace, theirs: Trace, floor: float = 1.0) -> Difference:
    """The largest differences, and the first layer where they exceed the tolerance.

    `floor` is the smallest absolute value that the tolerance is taken of. Raises InputError where the numbers of
    layers differ.
    """
    if len(ours.states) != len(theirs.states):
        raise InputError(f"the source has {len(ours.states)} layers, the export {len(theirs.states)}: not its model")
    layers = [max(map(_distance, a, b)) for a, b in zip(ours.states, theirs.states, strict=True)]
    off = [not distance <= _allowed(state, floor) for distance, state in zip(layers, ours.states, strict=True)]
    logits, allowed = _distance(ours.logits, theirs.logits), _allowed([ours.logits], floor)
    if not _same_tables(ours.tables, theirs.tables):
        first = "the embedding"
    elif not logits <= allowed or any(off):
        first = f"layer {off.index(True)}" if any(off) else "the final norm or the head"
    else:
        first = None
    return Difference(logits, allowed, tuple(layers), first)


def _same_tables(ours: list[Tensor] | None, theirs: list[Tensor] | None) -> bool:
    if ours is None or theirs is None:
        return True
    if len(ours) != len(theirs):
        return False
    return all(_distance(a, b) <= _allowed([a], 0.0) for a, b in zip(ours, theirs, strict=True))


def _distance(a: Tensor, b: Tensor) -> float:
    return float("inf") if a.shape != b.shape else float((upcast(a).cpu() - upcast(b).cpu()).abs().max())


def _allowed(tensors: list[Tensor], floor: float) -> float:
    return TOLERANCE * max(floor, *(float(t.abs().max()) for t in tensors))


def measured(ids: Tensor, source: Trace, whole: Difference, files: Difference) -> dict[str, Any]:
    """What every proof says of its comparison.

    Args:
        ids: what was read, (B, T).
        whole: the files against the source, rounding included.
        files: the files against what they should hold.
    """
    return {
        "sequences": len(ids),
        "positions": ids.shape[1],
        "max_difference": whole.max_difference,
        "tolerance": files.tolerance,
        "max_difference_without_rounding": files.max_difference,
        "largest_logit": float(source.logits.abs().max()),
        "layers": list(files.layers),
    }


def demand(found: Difference, what: str) -> Difference:
    """`found`, where nothing differs. Raises InputError with the first differing layer."""
    if found.first is not None:
        raise InputError(
            f"{what} does not compute what its source does: they first differ at {found.first} "
            f"(logits by {found.max_difference:.3g}, at most {found.tolerance:.3g} allowed)"
        )
    return found
