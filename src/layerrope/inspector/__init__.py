"""What the norms of a checkpoint say about depth.

`table` reads the gains, `depth_law`, `angles`, `mds` and `gain_fit` are the measurements, `site` puts them together
for one site, `words` says them, `inspection` holds a whole model and writes it out, `compare` sets models side by
side. Only numpy and scipy compute; torch is imported for a LayerRoPE run of this package and for nothing else.
"""

from __future__ import annotations

from layerrope.inspector.compare import Comparison, compare
from layerrope.inspector.inspection import SCHEMA_VERSION, Inspection, check, inspect

__all__ = ["SCHEMA_VERSION", "Comparison", "Inspection", "check", "compare", "inspect"]
