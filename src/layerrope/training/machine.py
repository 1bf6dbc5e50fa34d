"""What this machine can run: devices, precisions, threads. Asked before any data is read."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator

import torch
from torch import nn

from layerrope.errors import InputError, reason

LOW_PRECISIONS = {"bf16": torch.bfloat16, "paper": torch.bfloat16}


MOST_THREADS = 1024
"""More than any machine has cores for; torch would start them all."""


def check_machine(device: str | torch.device, precision: str = "fp32") -> torch.device:
    """The torch device, when it is here and computes in `precision`. A request for the CPU never touches CUDA.

    Raises:
        InputError: no such device, or one that has no bf16.
    """
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"unknown device {str(device)!r}: use cpu, cuda or cuda:N") from error
    if chosen.type == "meta" or (chosen.type == "cpu" and chosen.index):
        raise InputError(f"device {device} does not compute: use cpu, cuda or cuda:N")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {device} was asked for, but torch sees no CUDA device here: use --device cpu")
    try:
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device {device} cannot be used ({reason(error)}): use --device cpu") from error
    if precision in LOW_PRECISIONS and not _computes(chosen, LOW_PRECISIONS[precision]):
        raise InputError(f"precision {precision} needs bf16, which device {device} does not have: use --precision fp32")
    return chosen


def default_device() -> str:
    """ "cuda" where torch sees one, otherwise "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _computes(device: torch.device, dtype: torch.dtype) -> bool:
    """Has the device native products in `dtype`? On the CPU, where every dtype is emulated if need be: any at all?"""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        x = torch.ones(2, 2, device=device, dtype=dtype)
        return bool(torch.isfinite(x @ x).all())
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def cast(model: nn.Module, precision: str) -> None:
    """Give the weights the precision's dtype: bf16 for "paper" (norms and gains stay fp32), fp32 otherwise."""
    if precision == "paper":
        model.to(LOW_PRECISIONS[precision])


def autocast(device: torch.device, precision: str, cache: bool = True) -> torch.autocast:
    """The autocast context of a forward pass; off for every precision but "bf16".

    `cache` False lets the bf16 copy of a weight go once it is used: where weights lie in shards, it would outlive them.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=cache)


def peak_memory(device: torch.device) -> int:
    """The most bytes held so far: by tensors on a CUDA device, by the whole process where the device is the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """`count` threads for torch's operators inside the context; None leaves them as they are.

    Raises:
        InputError: fewer than one, or more than `MOST_THREADS`.
    """
    if count is not None and count < 1:
        raise InputError(f"threads must be at least 1: got {count}")
    if count is not None and count > MOST_THREADS:
        raise InputError(f"threads must be at most {MOST_THREADS}: got {count}")
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
