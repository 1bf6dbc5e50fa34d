"""Folding: gains become ordinary weights, so the trained model needs no gain table and no code of this package.

A read gain goes into the norm's weight; a write gain goes into the rows of the output projection (`o`, `down`), or
into the output norm's weight where there is one. What can be folded is decided from the modules that are there (the
residual, the norms, the gates), never from the scheme's name. Arithmetic is in at least fp32 and rounded once.

Dimensions: L layers, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from layerrope.errors import InputError
from layerrope.gains import KINDS
from layerrope.model import LM, Layer
from layerrope.norms import Gate, LayerNorm, RMSNorm, upcast
from layerrope.residual import Add, Branch, Single
from layerrope.sublayers import GELU, Attention, SwiGLU

OUT = {"attn": "o", "mlp": "down"}
"""The output projection of each kind of sublayer."""

OWN_INSTEAD = "; export it as layerrope instead"

BACKBONES = {Gate: "prenorm", RMSNorm: "perinorm", LayerNorm: "perinorm"}
"""What stands after f in every layer -> the scheme without gains that folding leads to."""


@dataclass(frozen=True)
class Folded:
    """The weights of an LM without gains, in at least fp32, and what was done to get there."""

    backbone: str
    """the scheme that is left: prenorm or perinorm"""
    tensors: Mapping[str, Tensor]
    """named as in an `LM` of that scheme"""
    record: Mapping[str, str]
    """site -> where its gain went; empty where there was nothing to fold"""


def fold(model: Any) -> Any:
    """The same function of its input, as a model without a gain table.

    Args:
        model: an `LM`, or a model that `layerrope.apply` patched.

    Returns:
        For an `LM`, a new one whose scheme is `prenorm` or `perinorm`, its matrices in the dtype they had. For a
        patched model, a stock copy of it. A model without gains comes back as it is.

    Raises:
        InputError: the scheme cannot be written without its own code (the message names the feature), or the model has
            gains but is of another kind, or in a wrapper.
    """
    if isinstance(model, LM):
        folded = fold_tensors(model)
        return _build(model, folded) if folded.record else model
    from layerrope.patching.patching import fold_patched

    return fold_patched(model)


# ------------------------------------------------------------------------------------------------- what is in the way
def obstacles(model: LM) -> list[str]:
    """The features of `model` that no set of ordinary weights expresses, each in a few words; empty if it folds."""
    found = [] if type(model.ends) is Single else [f"its stream is more than one vector ({_name(model.ends)})"]
    if type(model) is not LM:
        found.append(f"its forward is its own ({_name(model)})")
    if isinstance(model.norm, Gate):
        found.append("it has no final norm")
    posts = set()
    for i, layer in enumerate(model.layers):
        found += [] if type(layer) is Layer else [f"layer {i} is a {_name(layer)}"]
        for kind in KINDS:
            sublayer = layer.get_submodule(kind)
            found += _of_sublayer(f"{kind} of layer {i}", sublayer)
            posts.add(type(sublayer.get_submodule("branch.post")))
    eps = {norm.eps for norm in model.modules() if isinstance(norm, RMSNorm | LayerNorm)}
    if len(eps) > 1 or eps - {model.config.eps}:
        found.append(f"its norms have differing eps ({', '.join(map(str, sorted(eps | {model.config.eps})))})")
    if len({BACKBONES.get(post) for post in posts}) > 1:
        found.append("some layers have a norm after f and some have none")
    return found


def _of_sublayer(where: str, sublayer: nn.Module) -> Iterator[str]:
    residual, branch, f = (sublayer.get_submodule(name) for name in ("residual", "branch", "f"))
    if type(residual) is not Add:
        yield f"the residual of {where} is {_name(residual)}, not h + y"
    if type(branch) is not Branch or type(branch.post) not in BACKBONES:
        yield f"the branch of {where} is {_name(branch)}"
    elif type(branch.pre) not in (RMSNorm, LayerNorm):
        yield f"{where} reads the stream without a norm"
    if type(f) not in (Attention, SwiGLU, GELU):
        yield f"{where} is {_name(f)}"


def _name(module: nn.Module) -> str:
    return type(module).__name__


# ---------------------------------------------------------------------------------------------------- the arithmetic
@torch.no_grad()
def fold_tensors(model: LM) -> Folded:
    """The weights that `fold` gives, before they are rounded to the model's dtype.

    Raises:
        InputError: as `fold`.
    """
    found = obstacles(model)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InputError(f"scheme {model.config.scheme!r} has no stock form: {found[0]}{more}{OWN_INSTEAD}")
    tensors = {name: upcast(t.detach()) for name, t in model.state_dict().items() if not name.startswith("gains.")}
    record: dict[str, str] = {}
    for i, rows in enumerate(model.gain_rows(model.embed.weight.device)):
        for kind, pair in zip(KINDS, (None, None) if rows is None else rows.unbind(0), strict=True):
            _fold_sublayer(model.layers[i].get_submodule(kind), kind, f"layers.{i}.{kind}", pair, tensors, record)
    return Folded(BACKBONES[type(model.layers[0].get_submodule("attn.branch.post"))], tensors, record)


def _fold_sublayer(
    sublayer: nn.Module, kind: str, name: str, pair: Tensor | None, tensors: dict[str, Tensor], record: dict[str, str]
) -> None:
    """Put this sublayer's read and write gains, `pair` (2, D or 1), and its gate into `tensors`."""
    branch = sublayer.get_submodule("branch")
    assert isinstance(branch, Branch)
    read = pair[0] if pair is not None and branch.reads else None
    write = pair[1] if pair is not None and branch.writes else None
    _fold_norm(branch.pre, read, f"{name}.branch.pre", tensors)
    if read is not None:
        record[f"{kind}_read"] = "the weight of the norm before f"
    if isinstance(branch.post, Gate):
        gate = _product(branch.post.weight, write)
        tensors.pop(f"{name}.branch.post.weight", None)
        if gate is not None:
            _scale_rows(f"{name}.f.{OUT[kind]}", gate, tensors)
            record[f"{kind}_write"] = f"the rows of {OUT[kind]}"
        return
    _fold_norm(branch.post, write, f"{name}.branch.post", tensors)
    if write is not None:
        record[f"{kind}_write"] = "the weight of the norm after f"


def _fold_norm(norm: nn.Module, row: Tensor | None, name: str, tensors: dict[str, Tensor]) -> None:
    """The weight with which a plain norm does what this one does with `row`; its bias likewise."""
    own = norm.get_parameter("weight") if getattr(norm, "weight", None) is not None else None
    weight = _product(own, row)
    D = _width(tensors)
    weight = torch.ones(D, device=tensors["embed.weight"].device) if weight is None else weight
    tensors[f"{name}.weight"] = upcast(weight).expand(D).clone()
    if f"{name}.bias" in tensors and own is not None and row is not None:  # a row that scales, scales the bias too
        tensors[f"{name}.bias"] = tensors[f"{name}.bias"] * row


def _scale_rows(name: str, gate: Tensor, tensors: dict[str, Tensor]) -> None:
    tensors[f"{name}.weight"] = tensors[f"{name}.weight"] * upcast(gate)[:, None]
    if f"{name}.bias" in tensors:
        tensors[f"{name}.bias"] = tensors[f"{name}.bias"] * upcast(gate)


def _product(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a * b


def _width(tensors: Mapping[str, Tensor]) -> int:
    return tensors["embed.weight"].shape[1]


def _build(model: LM, folded: Folded) -> LM:
    """The LM of the folded weights, each matrix rounded once to the dtype it had."""
    dtypes = {name: t.dtype for name, t in model.state_dict().items()}
    norms = torch.float32
    made = lm_from_tensors(
        replace(model.config, scheme=folded.backbone),
        {name: t.to(dtypes.get(name, norms)) for name, t in folded.tensors.items()},
    )
    return made.train(model.training)


def lm_from_tensors(config: Any, tensors: Mapping[str, Tensor]) -> LM:
    """The LM of `config` that holds `tensors`, in their dtypes.

    Raises:
        InputError: a tensor is missing, unknown, or of another shape than the config says.
    """
    with torch.device("meta"):
        model = LM(config)
    needed = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    given = dict(tensors)
    if config.tie and "embed.weight" in given:
        given["head.weight"] = given["embed.weight"]
    for name, shape in needed.items():
        if name not in given:
            raise InputError(f"tensor {name} is missing: the weights do not match the configuration")
        if tuple(given[name].shape) != shape:
            raise InputError(
                f"tensor {name} has shape {tuple(given[name].shape)}, the configuration says {shape}: they do not match"
            )
    extra = sorted(set(given) - set(needed))
    if extra:
        raise InputError(f"tensor {extra[0]} is not in a model of this configuration: the weights do not match it")
    model.load_state_dict(given, assign=True)
    if config.tie:
        model.head.weight = model.embed.weight
    return model.requires_grad_(True)
