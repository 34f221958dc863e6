"""Which number format the networks compute in."""

from __future__ import annotations

import contextlib
from functools import cache

import torch


@cache
def fast_bf16(device_type: str) -> bool:
    """True where bfloat16 matrix products are done in hardware, so that they are faster than float32."""
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported()
    if device_type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported())
    return False


def autocast(device_type: str, precision: str = "auto") -> contextlib.AbstractContextManager:
    """Mixed precision for `precision` in {"auto", "bf16", "fp32"}; "auto" is bf16 where the hardware has it."""
    if precision == "fp32" or (precision == "auto" and not fast_bf16(device_type)):
        return contextlib.nullcontext()
    return torch.autocast(device_type, torch.bfloat16)
