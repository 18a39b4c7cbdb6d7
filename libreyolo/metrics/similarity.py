"""How like one picture is to another. C channels, H W pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_PSNR = 100.0  # dB, what equal pictures get
SIDE, SIGMA = 11, 1.5
K1, K2 = 0.01, 0.03


def psnr(one: Tensor, other: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB of two pictures [C, H, W] with values in [0, 1], over all values at once; at most 100."""
    error = float((one - other).square().mean())
    return MAX_PSNR if error <= 10 ** (-MAX_PSNR / 10) else float(-10.0 * torch.log10(torch.tensor(error, dtype=torch.float64)))


def ssim(one: Tensor, other: Tensor) -> float:
    """Return the structural similarity (Wang et al. 2004, eq. 13) of two pictures [C, H, W] with values in [0, 1]: the mean over channels and pixels.

    Gaussian window of 11x11 with sigma 1.5. Windows that reach over the border see zeros there, as LibreYOLO's do, so that every pixel counts and
    pictures smaller than a window have a value as well. At most 1, for equal pictures.
    """
    channels = one.shape[0]
    maps = torch.cat([one, other, one * one, other * other, one * other]).unsqueeze(1)
    offsets = torch.arange(SIDE, dtype=one.dtype, device=one.device) - SIDE // 2
    taps = torch.exp(-offsets.square() / (2 * SIGMA**2))
    taps = taps / taps.sum()
    blurred = F.conv2d(F.conv2d(maps, taps.reshape(1, 1, -1, 1), padding=(SIDE // 2, 0)), taps.reshape(1, 1, 1, -1), padding=(0, SIDE // 2))
    mean1, mean2, square1, square2, product = blurred.squeeze(1).split(channels)
    variance1, variance2, covariance = square1 - mean1**2, square2 - mean2**2, product - mean1 * mean2
    like = (2 * mean1 * mean2 + K1**2) * (2 * covariance + K2**2)
    return float((like / ((mean1**2 + mean2**2 + K1**2) * (variance1 + variance2 + K2**2))).mean())
