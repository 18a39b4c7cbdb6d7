"""Colour jitter in HSV, batched and without any synchronisation with the host. B pictures, H W pixels."""

from __future__ import annotations

import torch
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny


def jitter_hsv(images: Tensor, gains: Tensor) -> Tensor:
    """Return RGB [B, 3, H, W] in [0, 1] with hue shifted (wrapping) and saturation and value scaled (cut to [0, 1]).

    images: float [B, 3, H, W] in [0, 1].
    gains: float [B, 3], (hue shift in turns of the colour circle, saturation factor, value factor); (0, 1, 1) changes nothing but rounding.

    HSV as in A. R. Smith, "Color gamut transform pairs", SIGGRAPH 1978. Back to RGB by channel n in (5, 3, 1):
    v - v * s * clamp(min(k, 4 - k), 0, 1) with k = (n + 6 h) mod 6, which is the hexcone without its six cases.
    Deviation from trainers that multiply the hue by 1 + gain: a shift moves every hue alike, where a product leaves red as it is.
    """
    lowest, value = images.aminmax(dim=1)
    chroma = value - lowest
    # Where it is 0 so is what it divides.
    safe = chroma.clamp(min=TINY)
    red, green, blue = images.unbind(dim=1)
    # Hue in sixths of the circle, from the two channels that are not the highest.
    below_red = torch.where(green == value, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    sixths = torch.where(red == value, (green - blue) / safe, below_red)
    saturation = chroma / value.clamp(min=TINY)

    shift, saturation_factor, value_factor = gains[:, :, None, None].unbind(dim=1)
    sixths = torch.add(sixths, shift, alpha=6)
    saturation = (saturation * saturation_factor).clamp_(0, 1)
    value = (value * value_factor).clamp_(0, 1)
    product = value * saturation
    n = torch.arange(5, 0, -2, device=images.device)[:, None, None]
    k = torch.remainder(sixths[:, None] + n, 6)
    return torch.addcmul(value[:, None], product[:, None], torch.minimum(k, 4 - k).clamp_(0, 1), value=-1)
