"""Every decodable dtype gives the stored value exactly, judged by torch and by numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerrope.tensors.floats import DECODERS, decode

TORCH = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}


@pytest.mark.parametrize("dtype", TORCH)
def test_every_bit_pattern_is_what_torch_says(dtype: str) -> None:
    width = np.uint8 if dtype.startswith("F8") else np.uint16
    patterns = np.arange(np.iinfo(width).max + 1, dtype=width)
    values = decode(patterns.tobytes(), dtype, patterns.shape)
    expected = torch.from_numpy(patterns).view(TORCH[dtype]).float().numpy()
    assert values.dtype == np.float32
    assert np.array_equal(values, expected, equal_nan=True)
    assert np.array_equal(np.signbit(values[~np.isnan(values)]), np.signbit(expected[~np.isnan(values)]))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("dtype", "code"), [("F64", "f8"), ("F32", "f4"), ("F16", "f2")])
def test_both_byte_orders_and_full_precision(dtype: str, code: str, order: str) -> None:
    values = np.array([[1 / 3, -0.0, np.inf], [np.finfo(code).tiny, np.finfo(code).max, -7.25]], dtype=code)
    read = decode(values.astype(order + code).tobytes(), dtype, values.shape, order)
    assert read.dtype == (np.float64 if dtype == "F64" else np.float32)
    assert np.array_equal(read, values.astype(read.dtype))
    read += 1  # the array is the caller's own


def test_the_table_is_covered() -> None:
    assert set(DECODERS) == {*TORCH, "F32", "F64"}
