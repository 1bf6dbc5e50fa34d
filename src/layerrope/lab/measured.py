"""Gains as they are in trained models, in the form the lab page reads: sizes, directions and LayerRoPE's own numbers.

`assets/smollm2-135m.json` is `measure` of the norms in `tests/data/smollm2-135m.npz`; a test holds one to the other.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerrope.gains import SITES, LayerRoPE
from layerrope.inspector.depth_law import power_law
from layerrope.stream import executed, site_gains
from layerrope.training.recipe import TrainConfig
from layerrope.training.trained import load_trained

MOST_GAIN_NUMBERS = 250_000
"""Numbers of shared or free gain vectors that a page takes in, about 1.3 MB; a run with more gets no sliders."""
MOST_VECTORS = 64
"""Vectors of which a page carries the Gram matrix; above, they are drawn in no picture."""


def packaged() -> dict[str, Any]:
    """The measured norms of SmolLM2-135M (30 layers, width 576), with where they come from."""
    return json.loads((resources.files("layerrope.lab") / "assets" / "smollm2-135m.json").read_text(encoding="utf-8"))


def measure(rows: NDArray[Any]) -> dict[str, Any]:
    """What the page knows of a gain table (L, d): `rms` by layer, the lower triangle of its `gram`, its power law."""
    table = np.asarray(rows, dtype=np.float64)
    sizes = np.sqrt(np.mean(table**2, axis=1))
    found: dict[str, Any] = {"d": table.shape[1], "rms": sizes.tolist(), "gram": None, "law": None}
    if 3 <= len(table) <= MOST_VECTORS and np.all(sizes > 0):
        found["gram"] = (table @ table.T)[np.tril_indices(len(table))].tolist()
    if len(table) >= 2 and np.all(sizes > 0):
        law = power_law(np.arange(len(table), dtype=np.float64), sizes, resamples=0)
        found["law"] = {"alpha": float(np.log(law.c)), "beta": law.beta}
    return found


def of_run(folder: Path) -> dict[str, Any]:
    """The gains of a run of this package: every site measured, and LayerRoPE's numbers where its scheme has them.

    Raises:
        InputError: no run there, or no sound checkpoint of its model.
    """
    found = load_trained(folder)
    sites = {name: measure(rows.double().numpy()) for name, rows in site_gains(found.model).items()}
    table = _table_of(found.model.gains, len(executed(found.model)))
    return {"name": f"{name_of(found.config)} ({folder.name})", "sites": sites, "table": table}


def name_of(config: TrainConfig) -> str:
    """`layerrope, 24 layers, width 64`."""
    return f"{config.model.scheme}, {config.model.n_layer} layers, width {config.model.d_model}"


def _table_of(module: Any, depth: int) -> dict[str, Any] | None:
    """LayerRoPE's own numbers, from which the page computes its gains; None without them, or with too many."""
    tables = [m for m in module.modules() if isinstance(m, LayerRoPE)] if module is not None else []
    if len(tables) != 1 or tables[0].gamma.numel() > MOST_GAIN_NUMBERS or tables[0].d_model % 2:
        return None
    table = tables[0]
    return {
        "n_layer": depth,
        "trained": table.n_layer,
        "d": table.d_model,
        "base": float(table.base),
        "spectrum": table.spectrum if table.rotation else "none",
        "schedule": table.schedule,
        "per_layer": table.gamma_per == "layer",
        "sites": {site: _site(table, k) for k, site in enumerate(table.sites)},
    }


def _site(table: LayerRoPE, k: int) -> dict[str, Any]:
    """One site's vector (or vectors, layer by layer), scalars, and its free tables where it has them."""

    def scalar(name: str) -> float:
        values = getattr(table, name)
        return 0.0 if values is None else float(values.detach()[k])

    gamma = table.gamma.detach().float().numpy()
    found: dict[str, Any] = {name: scalar(name) for name in ("alpha", "beta", "alpha_rot", "beta_rot")}
    found["gamma"] = packed(gamma[k] if gamma.ndim == 2 else gamma[:, k])
    found["magnitude"] = _column(table.magnitude_table, k)
    found["angle"] = _column(table.angle_table, k)
    return found


def _column(free: Any, k: int) -> list[float] | None:
    return None if free is None else free.detach()[:, k].tolist()


def packed(values: NDArray[np.float32]) -> str:
    """Numbers as the page reads them: their little-endian fp32 bytes in base64, exact and short."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode()


KNOWN_SITES: Mapping[str, str] = {
    "attn_read": "attention read",
    "attn_write": "attention write",
    "attn_post": "attention output norm",
    "mlp_read": "MLP read",
    "mlp_write": "MLP write",
    "mlp_post": "MLP output norm",
}
assert set(SITES) <= set(KNOWN_SITES)
