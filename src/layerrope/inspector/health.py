"""Gains that are not what training left: broken values, untouched starts, and scales folded in by a quantiser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def fault(values: Array, gain: bool = True) -> str | None:
    """What is wrong with one tensor, or None. A bias (`gain` False) may well be all zeros or ones."""
    if values.size == 0:
        return "empty"
    if np.isnan(values).any():
        return "NaN"
    if np.isinf(values).any():
        return "Inf"
    if not gain:
        return None
    if not values.any():
        return "all zeros"
    return "all ones" if bool(np.all(values == 1)) else None


def bf16_exact(values: Array) -> float:
    """Share of `values` that bf16 holds exactly: the low 16 bits of their float32 are zero."""
    narrow = _as(values, np.float32)
    exact = (narrow.view(np.uint32) & 0xFFFF) == 0
    return float(np.mean(exact & (values == narrow))) if values.size else 1.0


def fp16_exact(values: Array) -> float:
    """Share of `values` that fp16 holds exactly."""
    return float(np.mean(_as(values, np.float16).astype(values.dtype) == values)) if values.size else 1.0


def exact_in(values: Array) -> str:
    """The narrowest of "bf16", "fp16", "fp32", "fp64" that holds every one of `values` exactly (bf16 before fp16)."""
    if bf16_exact(values) == 1:
        return "bf16"
    if fp16_exact(values) == 1:
        return "fp16"
    return "fp32" if np.array_equal(values, _as(values, np.float32), equal_nan=True) else "fp64"


def _as(values: Array, dtype: type) -> Array:
    """`values` rounded to `dtype`; what is too large for it is infinite there."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # a signalling NaN is "invalid"
        return np.ascontiguousarray(values).astype(dtype)


def folded_sites(kinds: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Sites that look as though a quantiser had folded scales into them, with the reason.

    AWQ (arXiv 2306.00978, section 3.2) divides a norm's gain by the scales of the linear map it feeds and stores
    the result in fp16. In a checkpoint trained in bf16 that shows: every untouched norm is exact in bf16, a folded
    one is exact in fp16 only. `kinds` is site -> `exact_in` of each of its tensors (less
    the 1 that a converter added). Leave out tensors without a spread of values (all ones are exact in anything), and
    a model whose every tensor is stored in fp32, which is no quantised one.
    """
    seen = {site: set(kind) for site, kind in kinds.items()}
    untouched = [site for site, kind in seen.items() if kind == {"bf16"}]
    if not untouched:
        return {}
    reason = "exact in fp16 but not in bf16, while {} is exact in bf16: scales were folded in, as AWQ does"
    # One tensor of a folded site may by chance be exact in bf16 too (a layer the quantiser left alone).
    return {
        site: reason.format(", ".join(untouched)) for site, kind in seen.items() if kind in ({"fp16"}, {"fp16", "bf16"})
    }
