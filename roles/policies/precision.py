"""Sets the precision of a network's matrix products (`algorithm.precision`)."""

from __future__ import annotations

import warnings
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


def set_matmul_precision(precision: Precision, device: torch.device) -> None:
    """Let float32 matrix products of this process round to TF32 if `precision` is tf32; else not.

    Said either way, so that it is the config that decides, and no environment variable
    (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE) or library. NVIDIA_TF32_OVERRIDE=0 alone is beyond us: it
    keeps NVIDIA's libraries from TF32. CPU cores compute in float32.
    """
    high = precision == "tf32" and device.type == "cuda"
    # This call keeps torch's older and newer switches for it in step; torch refuses to multiply
    # when they differ. torch 2.9 warns that the call will be deprecated; later ones take that back.
    warnings.filterwarnings("ignore", message="Please use the new API settings to control TF32")
    torch.set_float32_matmul_precision("high" if high else "highest")
