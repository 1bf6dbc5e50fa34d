"""What to be careful about, in words: broken, untouched and missing layers, each with its site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layerrope.inspector.naming import at_most
from layerrope.norm_sites import role_words

#: Fault -> what is said of the layers that have it, and of a single norm.
_SAID = {
    "NaN": ("holds NaN in {}", "holds NaN"),
    "Inf": ("holds Inf in {}", "holds Inf"),
    "empty": ("is empty in {}", "is empty"),
    "all zeros": ("is all zeros in {}", "is all zeros"),
    "all ones": ("is all ones in {} (probably untrained)", "is all ones (probably untrained)"),
    "missing": ("lacks {}", "is missing"),
}


def fault_words(faults: Iterable[Mapping[str, Any]]) -> list[str]:
    """One clause for each site and fault, with the layers: "attention read holds NaN in layer 3"."""
    groups: dict[tuple[str, str, str], list[int | None]] = {}
    for f in faults:
        groups.setdefault((f["role"], f["part"], f["fault"]), []).append(f["layer"])
    return at_most([_clause(*key, [n for n in layers if n is not None]) for key, layers in groups.items()])


def _clause(role: str, part: str, fault: str, layers: Sequence[int]) -> str:
    site = role_words(role) + (" bias" if part == "bias" else "")
    many, one = _SAID[fault]
    return f"{site} {many.format(layer_words(layers)) if layers else one}"


def layer_words(layers: Sequence[int], most: int = 6) -> str:
    """ "layer 3", "layers 3, 7 to 9"; after `most` stretches only how many more layers there are."""
    stretches: list[list[int]] = []
    for layer in sorted(layers):
        if stretches and layer == stretches[-1][-1] + 1:
            stretches[-1].append(layer)
        else:
            stretches.append([layer])
    said = [_stretch(s) for s in stretches[:most]]
    rest = sum(len(s) for s in stretches[most:])
    noun = "layer" if len(layers) == 1 else "layers"
    return f"{noun} {', '.join(said)}" + (f" and {rest} more" if rest else "")


def _stretch(layers: Sequence[int]) -> str:
    return f"{layers[0]} to {layers[-1]}" if len(layers) > 2 else ", ".join(map(str, layers))
