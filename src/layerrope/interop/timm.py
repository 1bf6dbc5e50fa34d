"""timm: a Vision Transformer that `layerrope.apply` patched becomes a stock folder of timm, proved equal."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import layerrope
from layerrope.errors import InputError, MissingExtra, in_full
from layerrope.exporting.proof import Trace, compare, demand
from layerrope.exporting.publish import published
from layerrope.exporting.stock import dtype_word
from layerrope.files import write_json
from layerrope.patching.patching import Patch, fold_patched, patch_of
from layerrope.training.trained import check_finite


def export_timm(model: nn.Module, to: str | os.PathLike[str], *, overwrite: bool = False) -> dict[str, Any]:
    """Write a timm model, its gains folded, as a stock folder that `timm.create_model("local-dir:TO")` loads.

    The folder is read back, and the logits of two random images and what every block adds to the stream are compared
    with the model's before it appears under its name.

    Args:
        model: made by `timm.create_model`; with depth gains or without.

    Returns:
        What `proof.json` in the folder holds.

    Raises:
        MissingExtra: timm is not installed.
        InputError: the model has no timm configuration, the folder is there already or cannot be written, or the
            proof fails (naming the first block that differs). No folder is left then.
    """
    try:
        import timm  # pyright: ignore[reportMissingImports]
        from timm.models import save_for_hf  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    except ImportError as error:
        raise MissingExtra("timm", "vision") from error
    configuration: Any = getattr(model, "pretrained_cfg", None)
    if not (configuration and configuration.get("architecture")):
        raise InputError(
            f"this {type(model).__name__} was not made by timm.create_model, so timm could not make it again"
        )
    patch = patch_of(model)
    folded = fold_patched(model)
    check_finite("the folded model", folded.named_parameters())
    with published(Path(to), overwrite) as aside:
        save_for_hf(folded, str(aside), safe_serialization=True)
        try:
            read = timm.create_model(f"local-dir:{aside}", pretrained=True)
        except RuntimeError as error:
            raise InputError(f"timm cannot load what it saved of this model ({in_full(error)[:300]})") from error
        proof = _prove(model, folded, read.to(_dtype(folded))) | {
            "reader": f"timm {timm.__version__}",
            "scheme": None if patch is None else patch.record["scheme"],
            "folded": {} if patch is None else _places(patch),
        }
        write_json(aside / "proof.json", proof)
    return proof


def _prove(model: nn.Module, folded: nn.Module, read: nn.Module) -> dict[str, Any]:
    source, stock = _traced(model), _traced(folded)
    fold = demand(compare(source, stock, floor=0.0), "the folded model")
    files = demand(compare(stock, _traced(read), floor=0.0), "the folder (read by timm)")
    return {
        "passed": True,
        "format": folded.pretrained_cfg["architecture"],  # pyright: ignore[reportArgumentType, reportIndexIssue]
        "dtype": dtype_word(_dtype(folded)),
        "images": len(source.logits),
        "max_difference": fold.max_difference,
        "max_difference_of_files": files.max_difference,
        "tolerance": fold.tolerance,
        "largest_logit": float(source.logits.abs().max()),
        "layers": list(fold.layers),
        "layerrope": layerrope.__version__,
        "torch": torch.__version__,
    }


@torch.no_grad()
def _traced(model: nn.Module) -> Trace:
    """Logits of two random images and what each block adds to the stream, in float64, so that a LayerScale near zero
    hides nothing."""
    made: Any = copy.deepcopy(model).to("cpu", torch.float64).eval()
    added: list[list[Tensor]] = []

    def keep(block: nn.Module, given: Any, out: Tensor) -> None:
        added.append([out - given[0]])

    for block in made.blocks:
        block.register_forward_hook(keep)
    return Trace(made(_images(made)), added)


def _images(model: Any) -> Tensor:
    """Two random images of the model's own size (2, C, H, W)."""
    channels, *size = model.pretrained_cfg["input_size"]
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or size
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(0)).double()


def _dtype(model: nn.Module) -> torch.dtype:
    return next(model.parameters()).dtype


def _places(patch: Patch) -> dict[str, str]:
    return {
        site.site: f"the {site.weight} of {site.norm.rpartition('.')[2]}"
        if site.norm
        else f"the rows of {str(site.matrix).rpartition('.')[2]}"
        for site in patch.acting
    }
