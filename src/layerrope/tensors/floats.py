"""Stored numbers to float32, exactly: one table row per dtype that can be decoded without loss.

F16, BF16 and every 8-bit float embed in float32, so the decoded value *is* the stored value. F64 stays float64.
numpy has no bfloat16 and no 8-bit floats: BF16 is the upper half of a float32 bit pattern, and the 8-bit
formats have 256 values each, so they are a look-up table made from their definition
(FP8 Formats for Deep Learning, arXiv 2209.05433; the "FNUZ" variants, arXiv 2206.02915; E8M0 of the OCP
Microscaling specification v1.0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Literal

import numpy as np

#: Width in bits of every dtype the safetensors format names (safetensors 0.8).
BITS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
        **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
        **dict.fromkeys(("F32", "I32", "U32"), 32),
        **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
        **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
        "F4": 4,
    }
)

#: GGUF type number -> (name, numbers per block, bytes per block), as in ggml's type traits.
GGUF_TYPES: Mapping[int, tuple[str, int, int]] = MappingProxyType(
    {
        0: ("F32", 1, 4),
        1: ("F16", 1, 2),
        2: ("Q4_0", 32, 18),
        3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24),
        8: ("Q8_0", 32, 34),
        9: ("Q8_1", 32, 36),
        10: ("Q2_K", 256, 84),
        11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210),
        15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66),
        17: ("IQ2_XS", 256, 74),
        18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50),
        20: ("IQ4_NL", 32, 18),
        21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82),
        23: ("IQ4_XS", 256, 136),
        24: ("I8", 1, 1),
        25: ("I16", 1, 2),
        26: ("I32", 1, 4),
        27: ("I64", 1, 8),
        28: ("F64", 1, 8),
        29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2),
        34: ("TQ1_0", 256, 54),
        35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17),
        40: ("NVFP4", 64, 36),
        41: ("Q1_0", 128, 18),
    }
)
TYPE_NAMES = frozenset(name for name, _, _ in GGUF_TYPES.values())


@cache
def float8_values(exponent_bits: int, mantissa_bits: int, bias: int, special: str) -> np.ndarray:
    """The 256 float32 values of an 8-bit float, indexed by its bit pattern.

    `special` says which patterns are not finite: "ieee" (top exponent holds infinities and NaN), "fn" (only
    the all-ones magnitude is NaN), "fnuz" (only the pattern of minus zero is NaN).
    """
    pattern = np.arange(256)
    sign = np.where(pattern >> 7, -1.0, 1.0)
    exponent = (pattern >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (pattern & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    subnormal = np.ldexp(mantissa, 1 - bias)
    value = sign * np.where(exponent == 0, subnormal, np.ldexp(1 + mantissa, exponent - bias))
    if special == "ieee":
        top = exponent == (1 << exponent_bits) - 1
        value[top] = np.where(mantissa[top] == 0, sign[top] * np.inf, np.nan)
    elif special == "fn":
        value[(pattern & 0x7F) == 0x7F] = np.nan
    elif special == "fnuz":
        value[0x80] = np.nan
    return value.astype(np.float32)


@cache
def _e8m0_values() -> np.ndarray:
    """2^(pattern - 127), the all-ones pattern NaN: a power-of-two scale without sign or mantissa."""
    value = np.ldexp(1.0, np.arange(256) - 127)
    value[255] = np.nan
    return value.astype(np.float32)


def _bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


#: dtype -> (unsigned integer of the same width, its bit patterns -> floating point values)
DECODERS: Mapping[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = MappingProxyType(
    {
        "F64": ("u8", lambda bits: bits.view(np.float64)),
        "F32": ("u4", lambda bits: bits.view(np.float32)),
        "F16": ("u2", lambda bits: bits.view(np.float16).astype(np.float32)),
        "BF16": ("u2", _bfloat16),
        "F8_E4M3": ("u1", lambda bits: float8_values(4, 3, 7, "fn")[bits]),
        "F8_E5M2": ("u1", lambda bits: float8_values(5, 2, 15, "ieee")[bits]),
        "F8_E4M3FNUZ": ("u1", lambda bits: float8_values(4, 3, 8, "fnuz")[bits]),
        "F8_E5M2FNUZ": ("u1", lambda bits: float8_values(5, 2, 16, "fnuz")[bits]),
        "F8_E8M0": ("u1", lambda bits: _e8m0_values()[bits]),
    }
)


def decode(raw: bytes, dtype: str, shape: tuple[int, ...], order: Literal["<", ">"] = "<") -> np.ndarray:
    """`raw` as float32 (float64 for F64), exact, writable, shape `shape`.

    `dtype` is a key of DECODERS; `order` is the byte order of `raw`, little-endian or big-endian.
    """
    code, values = DECODERS[dtype]
    bits = np.frombuffer(raw, dtype=np.dtype(code).newbyteorder(order)).astype(code)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return values(bits).reshape(shape)
