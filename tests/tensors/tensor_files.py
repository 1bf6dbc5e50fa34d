"""Checkpoint files for the tests, written from the formats' descriptions and by nothing of the package."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
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


# -- GGUF ---------------------------------------------------------------------------------------------------------

KINDS = {"F32": 0, "F16": 1, "Q4_1": 3, "F64": 28, "BF16": 30}
#: value type number -> struct code
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass
class Typed:
    """A metadata value with its GGUF type number; plain Python values get 8 (text), 4 (int), 6 (float), 9 (list)."""

    kind: int
    value: Any


def gguf_string(text: str | bytes, order: str = "<") -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(order + "Q", len(raw)) + raw


def gguf_value(value: Any, order: str = "<") -> bytes:
    """Type number and value."""
    if not isinstance(value, Typed):
        value = Typed({str: 8, int: 4, float: 6, list: 9, bool: 7}[type(value)], value)
    head = struct.pack(order + "I", value.kind)
    if value.kind == 8:
        return head + gguf_string(value.value, order)
    if value.kind == 9:
        items = [gguf_value(item, order) for item in value.value]
        kind = items[0][:4] if items else struct.pack(order + "I", 4)
        return head + kind + struct.pack(order + "Q", len(items)) + b"".join(item[4:] for item in items)
    return head + struct.pack(order + SCALARS[value.kind], value.value)


def gguf_bytes(
    tensors: Mapping[str, np.ndarray | tuple[str, tuple[int, ...], bytes]],
    metadata: Mapping[str, Any],
    *,
    order: str = "<",
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A GGUF file: arrays, or (type name, shape, raw bytes). `alignment` is used; the metadata may declare it."""
    header = b"GGUF" + struct.pack(order + "IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        header += gguf_string(key, order) + gguf_value(value, order)
    data = bytearray()
    for name, value in tensors.items():
        if isinstance(value, tuple):
            kind, shape, raw = value
        else:
            swapped = value.astype(value.dtype.newbyteorder(order))
            kind, shape, raw = CODES[value.dtype.str[1:]], value.shape, swapped.tobytes()
        header += gguf_string(name, order) + struct.pack(f"{order}I{len(shape)}Q", len(shape), *shape[::-1])
        header += struct.pack(order + "IQ", KINDS.get(kind, 99), len(data))
        data += raw + bytes(-len(raw) % alignment)
    return header + bytes(-len(header) % alignment) + bytes(data)


def gguf_split(parts: list[Mapping[str, np.ndarray]], total: int | None = None) -> list[bytes]:
    """The files of a split set: numbered from 0 inside, `total` tensors declared for the whole set."""
    total = sum(map(len, parts)) if total is None else total
    split = [
        {"split.no": Typed(2, no), "split.count": Typed(2, len(parts)), "split.tensors.count": Typed(5, total)}
        for no in range(len(parts))
    ]
    split[0] = {"general.architecture": "llama", **split[0]}
    return [gguf_bytes(part, declared) for part, declared in zip(parts, split, strict=True)]
