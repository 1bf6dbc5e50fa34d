"""Checkpoint files for the tests, written from the formats' descriptions and by nothing of the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"f4": "F32", "f8": "F64", "f2": "F16", "u1": "U8", "i8": "I64"}


def safetensors_bytes(
    tensors: Mapping[str, np.ndarray | tuple[str, tuple[int, ...], bytes]],
    metadata: dict[str, str] | None = None,
    pad: int = 0,
) -> bytes:
    """A safetensors file: arrays, or (dtype, shape, raw bytes) for what numpy lacks; `pad` spaces at the end."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = bytearray()
    for name, value in tensors.items():
        if isinstance(value, tuple):
            dtype, shape, raw = value
        else:
            dtype, shape, raw = CODES[value.dtype.str[1:]], value.shape, value.tobytes()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return framed(json.dumps(header).encode() + b" " * pad, bytes(data))


def framed(header: bytes, data: bytes = b"") -> bytes:
    """`header` behind its length, in front of `data`."""
    return len(header).to_bytes(8, "little") + header + data


def bfloat16(values: np.ndarray) -> bytes:
    """`values` cut to bfloat16 (truncation: the tests use values that are exact)."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def tiny_llama(layers: int = 2, width: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 tensors of a Llama-shaped model, norms and one matrix a layer, values exact in float16."""
    rng = np.random.default_rng(seed)
    half = lambda *shape: rng.standard_normal(shape).astype(np.float16).astype(np.float32)  # noqa: E731
    tensors = {"model.embed_tokens.weight": half(8, width)}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        tensors[f"{at}.input_layernorm.weight"] = half(width)
        tensors[f"{at}.mlp.down_proj.weight"] = half(width, 3 * width)
        tensors[f"{at}.post_attention_layernorm.weight"] = half(width)
    return tensors | {"model.norm.weight": half(width)}


CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2}


def write_model(folder: Path, tensors: Mapping[str, np.ndarray], shards: int = 1) -> Path:
    """A Hugging Face folder: one file, or `shards` of them behind an index; and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
        return folder
    weight_map: dict[str, str] = {}
    for no in range(shards):
        mine = {name: tensors[name] for name in list(tensors)[no::shards]}
        file = f"model-{no + 1:05d}-of-{shards:05d}.safetensors"
        (folder / file).write_bytes(safetensors_bytes(mine))
        weight_map |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
