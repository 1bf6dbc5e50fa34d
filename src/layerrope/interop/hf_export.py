"""A model that `layerrope.apply` patched becomes a stock folder of its own class, proved equal."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch

import layerrope
from layerrope.errors import InputError, one_of
from layerrope.exporting.proof import POSITIONS, Trace, compare, demand, embeddings, measured, sample_ids, trace
from layerrope.exporting.publish import TOKENIZER_FILES, published
from layerrope.exporting.stock import DTYPES, dtype_word
from layerrope.files import read_json, write_json
from layerrope.interop.hf import from_pretrained, load_stock, quiet, transformers
from layerrope.patching.patching import Patch, fold_patched, patch_of
from layerrope.training.trained import check_finite

BESIDE = (*TOKENIZER_FILES, "generation_config.json")
"""Files of the source that are copied as they are."""


def export_patched(source: Path, to: Path, *, dtype: torch.dtype | None, overwrite: bool = False) -> dict[str, Any]:
    """Fold the gains of the decoder in `source` and write it to `to`; what proof.json holds.

    Args:
        dtype: of the written weights; None: the one they are stored in.

    Raises:
        InputError: as `from_pretrained` and `publish.published`; the proof fails, naming the first differing layer.
    """
    model = from_pretrained(source, dtype=torch.float32).eval()
    patch = patch_of(model)
    assert patch is not None
    chosen = dtype or _stored_dtype(source)
    folded = fold_patched(model)
    _check_numbers(source, folded, patch)
    with published(to, overwrite) as aside:
        rounded = copy.deepcopy(folded).to(chosen)
        check_finite(f"the export in {dtype_word(chosen)}", rounded.named_parameters())
        with quiet():
            rounded.save_pretrained(aside)
        for pattern in BESIDE:
            for file in source.glob(pattern):
                shutil.copyfile(file, aside / file.name)
        proof = _prove(model, folded, aside, patch.anatomy.layers, chosen)
        proof |= {"folded": _places(patch), "scheme": patch.record["scheme"]}
        write_json(aside / "proof.json", proof)
    return proof


def _stored_dtype(source: Path) -> torch.dtype:
    """The dtype that the folder's config.json names."""
    config = read_json(source / "config.json")
    dtypes = {dtype_word(dtype): dtype for dtype in DTYPES.values()}
    word = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return dtypes[one_of("dtype in config.json:", word, dtypes)]


def _check_numbers(source: Path, folded: Any, patch: Patch) -> None:
    """Raise InputError where a folded weight is not finite or a norm is zero throughout."""
    check_finite(f"{source}, folded", folded.named_parameters())
    for site in patch.acting:
        if site.norm is not None and not bool((folded.get_parameter(f"{site.norm}.{site.weight}") + site.added).any()):
            raise InputError(f"{source}: norm {site.norm}, folded, is zero throughout: what it feeds sees nothing")


def _places(patch: Any) -> dict[str, str]:
    return {
        site.site: "the norm's weight" if site.norm else f"the rows of {site.matrix.rpartition('.')[2]}"
        for site in patch.acting
    }


def _prove(model: Any, folded: Any, folder: Path, layers: str, dtype: torch.dtype) -> dict[str, Any]:
    ids = sample_ids(
        model.config.vocab_size, min(POSITIONS, getattr(model.config, "max_position_embeddings", POSITIONS))
    )

    def traced(m: Any) -> Trace:
        return trace(m.get_submodule(layers), lambda: m(input_ids=ids, use_cache=False).logits, embeddings(m))

    source, read = traced(model), traced(load_stock(folder))
    demand(compare(source, traced(folded)), "the folded model")
    files = demand(compare(traced(copy.deepcopy(folded).to(dtype).float()), read), "the folder (read by transformers)")
    whole = compare(source, read)
    return {
        "passed": True,
        "format": folded.config.model_type,
        "reason": None,
        "dtype": dtype_word(dtype),
        "reader": f"transformers {transformers.__version__}",
        **measured(ids, source, whole, files),
        "layerrope": layerrope.__version__,
        "torch": torch.__version__,
    }
