"""Checkpoints for the inspector's tests: folders and GGUF files made from arrays, and SmolLM2's real gains."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

DATA = Path(__file__).parent / "data"
REFERENCE = json.loads((DATA / "smollm2-135m.reference.json").read_text())["sites"]

Tensors = dict[str, np.ndarray]


def smollm2() -> dict[str, np.ndarray]:
    """`attn_in` and `mlp_in` (30, 576), `final` (576,), float32."""
    with np.load(DATA / "smollm2-135m.npz") as arrays:
        return {"attn_in": arrays["attn_in"], "mlp_in": arrays["mlp_in"], "final": arrays["final"].reshape(-1)}


def smollm2_tensors() -> Tensors:
    """SmolLM2's norms under their Hugging Face names, with an embedding beside them."""
    gains = smollm2()
    tensors = {"model.norm.weight": gains["final"], "model.embed_tokens.weight": np.zeros((7, 576), np.float32)}
    for layer in range(30):
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = gains["attn_in"][layer]
        tensors[f"model.layers.{layer}.post_attention_layernorm.weight"] = gains["mlp_in"][layer]
    return tensors


def write_folder(folder: Path, tensors: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Path:
    """A Hugging Face folder with float32 tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: np.ascontiguousarray(v, np.float32) for k, v in tensors.items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_gguf(path: Path, tensors: Mapping[str, np.ndarray], architecture: str) -> Path:
    """A version-3 GGUF file with F32 tensors and one metadata pair."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    arrays = {name: np.ascontiguousarray(v, np.float32) for name, v in tensors.items()}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(arrays), 1)
    head += text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    offset, data = 0, b""
    for name, array in arrays.items():
        dims = array.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, offset)
        padded = array.tobytes() + bytes(-array.nbytes % 32)
        offset, data = offset + len(padded), data + padded
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def layered(template: str, rows: np.ndarray) -> Tensors:
    """`template` with `{l}` for each row of (L, d) `rows`."""
    return {template.replace("{l}", str(layer)): row for layer, row in enumerate(rows)}


def growing(n: int, d: int, beta: float = 0.4, noise: float = 0.02, seed: int = 0) -> np.ndarray:
    """(n, d) gains along one random direction, growing as (l+1)^beta."""
    rng = np.random.default_rng(seed)
    direction = 1 + 0.3 * rng.standard_normal(d)
    rows = np.arange(1, n + 1)[:, None] ** beta * direction * (1 + noise * rng.standard_normal((n, d)))
    return rows.astype(np.float32)
