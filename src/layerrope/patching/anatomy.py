"""Where depth gains act in somebody else's model: its layers, their norms by role, their output projections.

Found from the module tree: the list of equal layers, the norms in them by the role table that the inspector uses
(`norm_sites`), and the last matrix of each sublayer. What does not fit is refused with the module's path. A LayerScale
after a sublayer is a norm's gain without the norm: a write site like any other.

Dimensions: L layers, D width of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from layerrope.errors import InputError
from layerrope.gains import KINDS, SITES
from layerrope.norm_sites import LAYOUTS, MODEL_TYPES, PARTS, find_norms
from layerrope.patching.timm_blocks import check_block, entry_of, is_timm

UNTOUCHED = frozenset({"q_norm", "k_norm", "attn_inner"})
"""Norms inside attention: no gain of a depth scheme acts there."""


@dataclass(frozen=True)
class SiteAt:
    """One site of one layer. Paths are relative to the model."""

    layer: int
    site: str
    gated: str
    """the module whose output the gain multiplies: the norm, or the sublayer where nothing stands after it"""
    norm: str | None
    """the norm (or LayerScale) at this site, or None"""
    weight: str
    """the parameter into which the gain folds: weight, or a LayerScale's gamma or lambda1"""
    matrix: str | None
    """the output projection into whose rows a write gain folds where there is no norm"""
    added: float
    """what the norm adds to its stored weight: 1 where it multiplies by 1 + w, else 0"""


@dataclass(frozen=True)
class Anatomy:
    """What `apply` needs to know of a model."""

    architecture: str
    owner: str
    """path of the module that holds the layers and runs them"""
    entry: str
    """path of the module whose call begins every forward pass: the owner, or the first one that it calls"""
    layers: str
    """path of the list of layers"""
    n_layer: int
    width: int
    sites: tuple[SiteAt, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The sites there are, in the order of `gains.SITES`."""
        present = {s.site for s in self.sites}
        return tuple(s for s in SITES if s in present)


def dissect(model: nn.Module, architecture: str | None = None) -> Anatomy:
    """The anatomy of `model`.

    Args:
        architecture: a model type of `norm_sites`; None: the one in `model.config`.

    Raises:
        InputError: the architecture is not in the table, or a module does not fit; the message names its path.
    """
    config = _config(model)
    timm = is_timm(model)
    named = architecture or ("timm-vit" if timm else config.get("model_type"))
    if named is None:
        raise InputError(
            f"{type(model).__name__} has no model type (no config of Hugging Face's, no timm block): name one whose"
            ' layers have the same norms, as in architecture="llama", or use layerrope.LayerRoPE in the module (see'
            " docs/howto-own-model.md)"
        )
    if named not in MODEL_TYPES:
        raise InputError(
            f"model type {named!r} is not in the table of norm roles, and roles are not guessed: "
            'name a model type whose layers have the same norms, as in architecture="llama"'
        )
    templates = _templates(named)
    owner, path, layers = _layers(model, templates)
    entry = owner
    if timm:
        entry = entry_of(model, owner)
        check_block(model, layers[0], f"{path}.0")
    sites = [site for i, layer in enumerate(layers) for site in _sites(layer, i, f"{path}.{i}", named, config)]
    if not sites:
        raise InputError(f"{path} has no norms that gains can act on")
    width = _width(model, sites)
    found = Anatomy(named, owner, entry, path, len(layers), width, tuple(sites))
    for name in found.names:
        have = [s.layer for s in sites if s.site == name]
        if len(have) != len(layers):
            missing = sorted(set(range(len(layers))) - set(have))[0]
            raise InputError(f"{path}.{missing} has no {name} site, other layers do: this model cannot be patched")
    _check_unshared(model, sites)
    return found


def _check_unshared(model: nn.Module, sites: list[SiteAt]) -> None:
    """Raise InputError where a gain would fold into a parameter that the model uses in a second place, too."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for site in sites:
        users = names[id(model.get_parameter(f"{site.norm or site.matrix}.{site.weight}"))]
        if len(users) > 1:
            raise InputError(f"{users[0]} and {users[1]} are one parameter: it cannot hold the gains of both places")


def _config(model: nn.Module) -> Mapping[str, Any]:
    config: Any = getattr(model, "config", None)
    return {**config.to_dict(), "model_type": config.model_type} if hasattr(config, "to_dict") else {}


def _templates(architecture: str) -> dict[str, str]:
    """Path of a norm below its layer -> the template it comes from."""
    layout = LAYOUTS[MODEL_TYPES[architecture]]
    names = [name for group in layout.roles.values() for name in group if "{l}." in name]
    return {name.partition("{l}.")[2]: name for name in names}


# ------------------------------------------------------------------------------------------------------------- layers
def _layers(model: nn.Module, templates: Mapping[str, str]) -> tuple[str, str, nn.ModuleList | nn.Sequential]:
    """(path of the owner, path of the list, the list) of the layers."""
    found: list[tuple[str, nn.ModuleList | nn.Sequential]] = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) and _is_stack(module, templates):
            found.append((path, module))
    if not found:
        raise InputError(
            f"no list of equal layers with the norms {', '.join(templates)} in {type(model).__name__}: "
            "this model cannot be patched"
        )
    if len(found) > 1:
        paths = " and ".join(path for path, _ in found)
        raise InputError(f"{type(model).__name__} has layers at {paths}: patch one of its parts instead")
    path, layers = found[0]
    return path.rpartition(".")[0], path, layers


def _is_stack(module: nn.ModuleList | nn.Sequential, templates: Mapping[str, str]) -> bool:
    first = module[0]
    same = all(type(layer) is type(first) for layer in module)
    return same and any(_submodule(first, leaf) is not None for leaf in templates)


def _submodule(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


# -------------------------------------------------------------------------------------------------------------- sites
def _sites(layer: nn.Module, i: int, path: str, architecture: str, config: Mapping[str, Any]) -> Iterator[SiteAt]:
    norms = _norms(layer, i, path, architecture, config)
    width = min((_length(layer, leaf, weight) for leaf, weight, _ in norms.values()), default=0)
    gates = any(f"{kind}_read" in norms and f"{kind}_write" not in norms for kind in KINDS)
    parts = _parts(layer, path, width) if gates else {}
    for kind in KINDS:
        for end in ("read", "write"):
            site = f"{kind}_{end}"
            if site in norms:
                leaf, weight, added = norms[site]
                yield SiteAt(i, site, f"{path}.{leaf}", f"{path}.{leaf}", weight, None, added)
            elif end == "write" and f"{kind}_read" in norms:
                gated, matrix = parts[kind]
                yield SiteAt(i, site, gated, None, "weight", matrix, 0.0)


def _norms(
    layer: nn.Module, i: int, path: str, architecture: str, config: Mapping[str, Any]
) -> dict[str, tuple[str, str, float]]:
    """Role -> (path below the layer, name of the gain, what it adds to it) of the norms that gains can act on."""
    leaves = {
        f"{template.replace('{l}', str(i))}.{weight}": leaf
        for leaf, template in _templates(architecture).items()
        if (weight := _weight(_submodule(layer, leaf))) is not None
    }
    norms: dict[str, tuple[str, str, float]] = {}
    for norm in find_norms(leaves, config, architecture=architecture).tensors:
        if norm.role not in SITES and norm.role not in UNTOUCHED:
            raise InputError(f"{path}.{leaves[norm.name]} is a {norm.role} norm: gains act on reads and writes only")
        if norm.role in SITES:
            weight = norm.name.rpartition(".")[2]
            norms[norm.role] = (leaves[norm.name], weight, float(norm.convention == "1+w"))
    known = set(leaves.values())
    for leaf, module in layer.named_modules():
        if leaf not in known and "norm" in type(module).__name__.lower() and not isinstance(module, nn.Identity):
            raise InputError(f"{path}.{leaf} is a norm whose role in {architecture} is not known: it cannot be patched")
    return norms


def _length(module: nn.Module, norm: str, weight: str) -> int:
    return len(module.get_parameter(f"{norm}.{weight}"))


def _weight(module: nn.Module | None) -> str | None:
    """The name of a norm's gain vector, or None where it has none."""
    for name in (name for name, part in PARTS.items() if part == "gain"):
        gain = getattr(module, name, None)
        if isinstance(gain, Tensor) and gain.ndim == 1:
            return name
    return None


def _parts(layer: nn.Module, path: str, width: int) -> dict[str, tuple[str, str]]:
    """Kind of sublayer -> (path of the module that gives its output, path of its output projection).

    The first child with matrices is attention, what follows is the MLP. The output projection is a sublayer's last
    matrix that gives the stream's width; a sublayer spread over several children gives its output there.
    """
    children = [(name, child) for name, child in layer.named_children() if matrices(child)]
    parts: dict[str, tuple[str, str]] = {}
    for kind, group in (("attn", children[:1]), ("mlp", children[1:])):
        found = [
            f"{path}.{name}.{matrix}".rstrip(".")
            for name, child in group
            for matrix in matrices(child)
            if out_features(child.get_submodule(matrix)) == width
        ]
        if not found:
            where = f"{path}.{group[-1][0]}" if group else path
            raise InputError(f"{where} has no matrix that gives the stream's {width} channels: it cannot be patched")
        parts[kind] = (f"{path}.{group[0][0]}" if len(group) == 1 else found[-1], found[-1])
    return parts


def matrices(module: nn.Module) -> list[str]:
    """Paths of the modules with a matrix as weight, in their order."""
    return [
        name
        for name, part in module.named_modules()
        if isinstance(getattr(part, "weight", None), Tensor)
        and part.weight.ndim == 2  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        and not isinstance(part, nn.Embedding)
    ]


def is_conv1d(module: nn.Module) -> bool:
    """Is this GPT-2's linear map, whose matrix is (in, out)?"""
    return type(module).__name__ == "Conv1D"


def out_features(module: nn.Module) -> int:
    weight = module.get_parameter("weight")
    return weight.shape[1 if is_conv1d(module) else 0]


def _width(model: nn.Module, sites: list[SiteAt]) -> int:
    """The length of every norm's weight. Raises InputError where two differ."""
    widths = {site.norm: _length(model, site.norm, site.weight) for site in sites if site.norm is not None}
    width = next(iter(widths.values()))
    for path, length in widths.items():
        if length != width:
            raise InputError(f"{path} has {length} channels, the stream has {width}: it cannot be patched")
    return width
