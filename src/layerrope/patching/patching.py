"""`layerrope.apply`: depth gains on a model of transformers, in place and reversible; `fold` makes it stock.

One gain table stands at the module that runs the layers and is computed once per forward; hooks multiply what the
norms give (reads, and writes of sandwich norms) or what the sublayers give (writes without a norm). No forward
changes its signature, and no parameter of the model changes its name.

Dimensions: L layers, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerrope import __version__
from layerrope.axes import Gains, Scheme, unit_init
from layerrope.errors import InputError, one_of
from layerrope.exporting.stored import store_names
from layerrope.gains import KINDS, LNS, LayerRoPE, Product, ReZero, rope_spectrum, rotate_pairs
from layerrope.norms import Gate, RMSNorm
from layerrope.patching.anatomy import Anatomy, SiteAt, dissect, is_conv1d
from layerrope.patching.timm_blocks import SpareGains, is_timm
from layerrope.residual import Add, Single, Site
from layerrope.scheme_table import scheme as find_scheme
from layerrope.terminal import note
from layerrope.training.trained import check_finite

INITS = ("neutral", "paper", "fit")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ATTRIBUTE = "layerrope_norm"
"""Name of the gain module in the model: trainers keep what is called a norm out of weight decay."""


# -------------------------------------------------------------------------------------------------------------- hooks
class Table:
    """Computes the gain rows before the layers run, and keeps them for the hooks until the next forward.

    Kept apart for forwards with and without gradient, so that a reference pass between a forward and its backward
    leaves the rows that activation checkpointing recomputes with. A plain object, so that copying the model copies it.
    """

    def __init__(self, owner: nn.Module) -> None:
        self.owner = owner
        self.rows: dict[bool, tuple[Tensor, ...]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"owner": self.owner, "rows": {}}  # a copy computes its own rows

    def __call__(self, module: nn.Module, args: Any) -> None:
        table = getattr(self.owner, ATTRIBUTE)()
        self.rows[torch.is_grad_enabled()] = table.flatten(0, 2).unbind(0)

    def row(self, index: int) -> Tensor:
        enabled = torch.is_grad_enabled()
        if enabled not in self.rows:
            self(self.owner, ())
        return self.rows[enabled][index]


class GateHook:
    """Multiplies a module's output, or the first of its outputs, by one row of the table."""

    def __init__(self, table: Table, index: int) -> None:
        self.table, self.index = table, index

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (self._gated(output[0]), *output[1:])
        return self._gated(output)

    def _gated(self, x: Tensor) -> Tensor:
        return (x * self.table.row(self.index)).to(x.dtype)


def row_index(site: SiteAt) -> int:
    """Which of the 4L rows of G (L, 2, 2, D) acts at a site."""
    kind, _, end = site.site.partition("_")
    return 4 * site.layer + 2 * KINDS.index(kind) + (end == "write")


# -------------------------------------------------------------------------------------------------------------- apply
@dataclass
class Patch:
    """A patched model: what was put in, and the way back."""

    model: nn.Module = field(repr=False)
    anatomy: Anatomy = field(repr=False)
    sites: tuple[str, ...]
    """the sites that gains act on"""
    replaced: bool
    """the norms' own weights were set to the identity and frozen, the gains stand in for them"""
    record: dict[str, Any] = field(repr=False)
    """what config.json keeps of it"""
    errors: dict[str, float]
    """site -> relative error of the fit, for init="fit" """
    handles: list[Any] = field(default_factory=list, repr=False)
    originals: dict[str, Tensor] | None = field(default_factory=dict, repr=False)
    """parameters as they were, trained or frozen, by path; None where the model was loaded patched"""

    @property
    def owner(self) -> nn.Module:
        return self.model.get_submodule(self.anatomy.owner)

    @property
    def gains(self) -> nn.Module:
        return getattr(self.owner, ATTRIBUTE)

    @property
    def acting(self) -> list[SiteAt]:
        return [site for site in self.anatomy.sites if site.site in self.sites]

    def remove(self) -> nn.Module:
        """Take the gains out and give the model its own norm weights back.

        Raises:
            InputError: the norm weights were replaced before the model was saved and loaded.
        """
        if self.replaced and self.originals is None:
            raise InputError("the norms' own weights were replaced before this model was saved: fold the gains instead")
        for path, value in (self.originals or {}).items():
            parameter = self.model.get_parameter(path)
            with torch.no_grad():
                parameter.copy_(value)
            parameter.requires_grad_(value.requires_grad)
        return self.strip()

    def strip(self) -> nn.Module:
        """Take the gains out; the model's parameters stay as they are."""
        for handle in self.handles:
            handle.remove()
        delattr(self.owner, ATTRIBUTE)
        del self.model._layerrope_patch
        config = getattr(self.model, "config", None)
        if config is not None and hasattr(config, "layerrope"):
            delattr(config, "layerrope")
        return self.model


def apply(
    model: nn.Module, scheme: str = "layerrope", *, init: str = "neutral", architecture: str | None = None
) -> Patch:
    """Put depth gains into `model`, in place.

    Args:
        model: a decoder of transformers (Llama, Mistral, Qwen, SmolLM3, Gemma, GLM-4, OLMo 2, Phi-3, GPT-NeoX, GPT-2,
            and others with the same layers), a ViT encoder of transformers, or a Vision Transformer of timm.
        scheme: one that is Pre-Norm with a gain table: `layerrope` with its switches, `lns`.
        init: "neutral" multiplies the model's own norm weights by gains that start at 1; "paper" puts the scheme's
            own start in place of them; "fit" puts the gains that fit them best there (and prints the errors).
        architecture: a model type of `norm_sites` whose layers have the same norms, for one that is not in the table.

    Returns:
        The patch: `.gains`, `.errors`, `.remove()`.

    Raises:
        InputError: the model does not fit (naming the module), is patched already, or the scheme or init does not.
    """
    one_of("init", str(init), INITS)
    if not isinstance(model, nn.Module):
        raise InputError(f"cannot put gains into a {type(model).__name__}: give a model of transformers or timm")
    if patch_of(model) is not None:
        raise InputError("this model has depth gains already: remove or fold them first")
    if hasattr(model, "_orig_mod"):
        raise InputError("this model is compiled already: apply depth gains first, then torch.compile")
    if hasattr(model, "peft_config"):
        raise InputError("this model has adapters already: apply depth gains first, then PEFT")
    anatomy = dissect(model, architecture)
    gains, sites = _build_gains(scheme, anatomy)
    replaced = init != "neutral" and isinstance(gains, LayerRoPE)
    record = {"scheme": scheme, "sites": list(sites), "replaced": replaced, "architecture": architecture}
    record["version"] = __version__
    patch = Patch(model, anatomy, sites, replaced, record, {})
    patch.errors.update(_start(gains, init, patch))
    _install(patch, gains)
    if replaced:
        _replace_weights(patch)
    return patch


def patch_of(model: nn.Module) -> Patch | None:
    """The patch of a patched model, or None."""
    return model.__dict__.get("_layerrope_patch")


def remove(model: nn.Module) -> nn.Module:
    """Undo `apply`. Raises InputError where there is nothing to undo, or as `Patch.remove`."""
    patch = patch_of(model)
    if patch is None:
        raise InputError(f"this {type(model).__name__} has no depth gains to remove")
    return patch.remove()


def _install(patch: Patch, gains: nn.Module) -> None:
    store_names(gains)
    gains.to(next(patch.model.parameters()).device)
    owner = patch.owner
    setattr(owner, ATTRIBUTE, gains)
    table = Table(owner)
    entry = patch.model.get_submodule(patch.anatomy.entry)
    patch.handles.append(entry.register_forward_pre_hook(table))
    for site in patch.acting:
        hook = GateHook(table, row_index(site))
        patch.handles.append(patch.model.get_submodule(site.gated).register_forward_hook(hook))
    if is_timm(patch.model):
        mine = {id(p) for p in gains.parameters()}
        names = {name for name, p in patch.model.named_parameters() if id(p) in mine}
        patch.handles.append(SpareGains(patch.model, names))
    patch.model.__dict__["_layerrope_patch"] = patch
    config = getattr(patch.model, "config", None)
    if config is not None:
        config.layerrope = patch.record


# -------------------------------------------------------------------------------------------------- scheme and start
def _build_gains(spec: str, anatomy: Anatomy) -> tuple[nn.Module, tuple[str, ...]]:
    """The gain module of a scheme, over the sites that it names and the model has."""
    chosen = find_scheme(spec)
    _check_scheme(spec, chosen)
    tables: list[nn.Module] = []
    sites: set[str] = set()
    for table in chosen.gains:
        here = tuple(s for s in anatomy.names if s in table.sites)
        if not here:
            wanted = ", ".join(sorted(table.sites))
            raise InputError(
                f"scheme {spec!r} acts on {wanted}; a {anatomy.architecture} has {', '.join(anatomy.names)}"
            )
        tables.append(_table(table, anatomy, here))
        sites |= set(here)
    gains = tables[0] if len(tables) == 1 else Product(*tables)
    return gains, tuple(s for s in anatomy.names if s in sites)


def _table(table: Gains, anatomy: Anatomy, sites: tuple[str, ...]) -> nn.Module:
    build: Any = table.build
    return build(anatomy.n_layer, anatomy.width, **({"sites": sites} if table.replaces else {}))


def _check_scheme(spec: str, chosen: Scheme) -> None:
    """Raise InputError unless the scheme is a gain table on a Pre-Norm backbone and nothing else."""
    if not chosen.gains:
        raise InputError(f"scheme {spec!r} has no gain table to put into a model: use layerrope or lns")
    site = Site(0, "attn", 2, 2, lambda d, weight=True: RMSNorm(d, weight=weight))
    branch = chosen.branch(site, chosen.covers("attn"))
    plain = type(chosen.residual(site)) is Add and type(chosen.ends(site)) is Single
    if (
        not plain
        or not isinstance(branch.pre, RMSNorm)
        or not isinstance(branch.post, Gate)
        or branch.post.weight is not None
    ):
        raise InputError(f"scheme {spec!r} is more than a gain table ({chosen.rule}): it cannot be put into a model")
    if chosen.init is not unit_init or chosen.tuning(2, 2):
        raise InputError(f"scheme {spec!r} sets initial weights or learning rates, which a made model has already")


def _start(gains: nn.Module, init: str, patch: Patch) -> dict[str, float]:
    """Set the gains' starting values; for "fit", the relative error at each site that has norms."""
    if not isinstance(gains, LayerRoPE):
        if init != "paper":
            raise InputError(f"gains of scheme {patch.record['scheme']!r} have one start only: use init paper")
        return {}
    if init == "paper":
        return {}
    neutral(gains)
    if init == "neutral":
        return {}
    _check_fits(gains)
    errors = {}
    for k, site in enumerate(gains.sites):
        rows = norm_gains(patch, site)
        if rows is not None:
            errors[site] = _fit(gains, k, rows)
            note(f"{site}: the norm weights fit with a relative error of {errors[site]:.4f}")
    return errors


@torch.no_grad()
def neutral(gains: LayerRoPE) -> None:
    """Make every gain 1, with all parameters alive: no slope, and the constant turn taken back in gamma."""
    for name in ("alpha", "beta", "alpha_rot", "beta_rot", "magnitude_table", "angle_table"):
        values = getattr(gains, name)
        if values is not None:
            values.zero_()
    gains.gamma.fill_(1.0)
    if gains.rotation:
        angle = torch.ones(gains.d_model // 2)
        angle = angle * rope_spectrum(gains.d_model, gains.base, angle) if gains.spectrum == "rope" else angle
        gains.gamma.copy_(rotate_pairs(torch.ones(gains.d_model), -angle).expand_as(gains.gamma))


def _check_fits(gains: LayerRoPE) -> None:
    wanted = {"magnitude": True, "spectrum": "rope", "gamma_per": "shared", "schedule": "power"}
    for name, value in wanted.items():
        if getattr(gains, name) != value:
            raise InputError(f"init fit knows LayerRoPE's own law only ({name} {value}): use init neutral or paper")
    if gains.n_layer < 3:
        raise InputError(f"init fit needs at least 3 layers, this model has {gains.n_layer}: use init neutral")


def norm_gains(patch: Patch, site: str) -> np.ndarray | None:
    """What the norms at `site` multiply by, (L, D), or None where there are none."""
    at = [s for s in patch.anatomy.sites if s.site == site]
    if any(s.norm is None for s in at):
        return None
    rows = [_norm_weight(patch.model, f"{s.norm}.{s.weight}") + s.added for s in at]
    return torch.stack(rows).cpu().numpy()


def _norm_weight(model: nn.Module, path: str) -> Tensor:
    """The weight at `path` in double. Raises InputError where its numbers are not loaded or not finite."""
    weight = model.get_parameter(path).detach()
    if weight.is_meta:
        raise InputError(f"{path} is on the meta device and has no numbers yet: load the weights, then fit them")
    check_finite(type(model).__name__, [(path, weight)])
    return weight.double()


@torch.no_grad()
def _fit(gains: LayerRoPE, k: int, rows: np.ndarray) -> float:
    """Give site `k` of the table the best LayerRoPE description of `rows` (L, D); its relative error."""
    from layerrope.inspector.gain_fit import fit_gains

    found = fit_gains(rows, np.arange(len(rows)), base=gains.base, shuffles=0, rotation=gains.rotation)
    gamma = torch.from_numpy(np.asarray(found.gamma)).float()
    turned = gains.rotation and found.alpha_rot is not None
    values = {name: value for name, value in found.scalars.items() if value is not None and gains.rotation}
    values |= {"alpha": found.alpha, "beta": found.beta}
    if gains.rotation and not turned:
        gamma = rotate_pairs(gamma, -rope_spectrum(gains.d_model, gains.base, gamma))
    gains.gamma[k] = gamma
    for name, value in values.items():
        getattr(gains, name)[k] = value
    made = gains.site_rows()[:, k].double().numpy()
    return float(np.linalg.norm(made - rows) / np.linalg.norm(rows))


@torch.no_grad()
def _replace_weights(patch: Patch) -> None:
    """Make the covered norms' own weights the identity and freeze them; a bias keeps its effect."""
    rows = patch.gains().flatten(0, 2)
    for site in patch.acting:
        if site.norm is None:
            continue
        norm = patch.model.get_submodule(site.norm)
        assert patch.originals is not None
        for name, parameter in norm.named_parameters(recurse=False):
            kept = parameter.detach().clone().requires_grad_(parameter.requires_grad)
            patch.originals[f"{site.norm}.{name}"] = kept
        bias = getattr(norm, "bias", None)
        if isinstance(bias, Tensor):
            row = rows[row_index(site)].to(bias.dtype)
            bias.copy_(torch.where(row.abs() > 1e-6, bias / row, bias))
        norm.get_parameter(site.weight).fill_(1.0 - site.added).requires_grad_(False)


# ------------------------------------------------------------------------------------------------------ save and load
def reapply(model: nn.Module, record: Mapping[str, Any], folder: Path) -> nn.Module:
    """Patch `model`, just loaded from `folder`, as `record` says, and give it the gains that lie there.

    Raises:
        InputError: the record or the gains do not fit the model.
    """
    architecture = record.get("architecture")
    anatomy = dissect(model, None if architecture is None else str(architecture))
    gains, sites = _build_gains(str(record.get("scheme")), anatomy)
    if record.get("sites", list(sites)) != list(sites):
        raise InputError(f"{folder}: config.json has gains on {record['sites']!r}, this model has sites {list(sites)}")
    patch = Patch(model, anatomy, sites, bool(record.get("replaced")), dict(record), {}, originals=None)
    _install(patch, gains)
    _load_gains(patch.gains, folder)
    if patch.replaced:
        for site in patch.acting:
            if site.norm is not None:
                model.get_parameter(f"{site.norm}.{site.weight}").requires_grad_(False)
    return model


def _load_gains(gains: nn.Module, folder: Path) -> None:
    from layerrope.tensors import open_source

    source = open_source(folder)
    stored = {name.partition(f"{ATTRIBUTE}.")[2]: name for name in source.names if f"{ATTRIBUTE}." in name}
    state = gains.state_dict()
    for name in sorted(set(state) ^ set(stored)):
        where = "lacks" if name in state else "has the unknown"
        raise InputError(f"{folder} {where} gain tensor {ATTRIBUTE}.{name}")
    values = source.read(stored.values())
    for name, t in state.items():
        read = torch.from_numpy(np.array(values[stored[name]]))
        if read.shape != t.shape:
            raise InputError(
                f"{folder}: gain tensor {stored[name]} has shape {tuple(read.shape)}, not {tuple(t.shape)}"
            )
        check_finite(str(folder), [(stored[name], read)])
        t.copy_(read)


# --------------------------------------------------------------------------------------------------------------- fold
def fold_patched(model: Any) -> Any:
    """A stock copy of a patched model, its gains in the weights. A model without gains comes back as it is.

    Raises:
        InputError: not a model of torch, or one whose adapters have not been merged.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"cannot fold a {type(model).__name__}: give an LM or a model patched by layerrope.apply")
    if patch_of(model) is None:
        if any(hasattr(module, ATTRIBUTE) for module in model.modules()):
            raise InputError("fold the patched model itself: merge adapters (merge_and_unload) and unwrap it first")
        if any(isinstance(module, LayerRoPE | LNS | ReZero) for module in model.modules()):
            raise InputError(
                f"a {type(model).__name__} with gains does not fold: give an LM, or a model patched by "
                "layerrope.apply, as it was before torch.compile or a wrapper; for others see docs/howto-own-model.md"
            )
        return model
    made = copy.deepcopy(model)
    patch = patch_of(made)
    assert patch is not None
    _fold_rows(patch)
    return patch.strip()


@torch.no_grad()
def _fold_rows(patch: Patch) -> None:
    rows = patch.gains().flatten(0, 2)
    for site in patch.acting:
        row = rows[row_index(site)].expand(patch.anatomy.width)
        path = site.norm or site.matrix
        assert path is not None
        module = patch.model.get_submodule(path)
        weight = module.get_parameter(site.weight)
        _check_plain(weight, f"{path}.{site.weight}")
        if site.norm is not None:
            folded = (weight.float() + site.added) * row - site.added
        else:
            folded = weight.float() * (row[None, :] if is_conv1d(module) else row[:, None])
        weight.copy_(folded.to(weight.dtype))
        if patch.replaced and site.norm is not None:  # frozen while the gains stood in for it
            kept = None if patch.originals is None else patch.originals[f"{path}.{site.weight}"]
            weight.requires_grad_(kept is None or kept.requires_grad)
        bias = getattr(module, "bias", None)
        if isinstance(bias, Tensor):
            bias.copy_((bias.float() * row).to(bias.dtype))


def _check_plain(weight: nn.Parameter, path: str) -> None:
    """Raise InputError where `weight` is quantised or sharded, where a product would be lost."""
    if type(weight.data) is not Tensor or weight.dtype not in DTYPES:
        stored = weight.dtype if type(weight.data) is Tensor else type(weight.data).__name__
        raise InputError(f"{path} is stored as {stored}: fold a whole model in fp64, fp32, bf16 or fp16")
