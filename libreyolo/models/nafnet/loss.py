"""The loss of nafnet: Charbonnier's smooth absolute difference (Lai et al., arXiv 1710.01992, eq. 3), in float32 or wider.

B batch, H W crop.
"""

from __future__ import annotations

import torch
from torch import Tensor

from libreyolo.interfaces.term import Term, per_count, shown

EPS = 1e-3
LEAST_MSE = 1e-10  # a PSNR of 100 dB, which is what equal pictures are said to have


class CharbonnierLoss:
    """The terms of a batch of crops: sums over this rank's pictures, to be divided by the values (pixels x channels) of all ranks."""

    def target_stats(self, counts_B: Tensor, weight_B: Tensor) -> dict[str, Tensor]:
        """Return the normaliser "values". counts_B: [B] float, values of each picture; weight_B: [B] float, 0 for a picture that must not count."""
        return {"values": (counts_B * weight_B.to(counts_B.dtype)).sum()}

    def terms(self, output: Tensor, targets: Tensor, counted: Tensor) -> dict[str, Term]:
        """Return "restore", which is trained, and "psnr", which is shown: that of all counted values of the step at once, in dB.

        output, targets: [B, 3, H, W], RGB in [0, 1] (the output may leave it). counted: float, 1 for a value that counts and 0 for one that does not,
        of a shape that broadcasts to [B, 1, H, W]. Where nothing counts, "restore" is 0 and connected to the output.
        """
        wide = torch.promote_types(output.dtype, torch.float32)
        counted = counted.to(wide)
        squares = (output.to(wide) - targets.to(wide)).square()
        distance = (counted * (squares + EPS**2).sqrt()).sum()
        count = counted.expand(output.shape[0], 1, *output.shape[2:]).sum() * output.shape[1]
        squared = (counted * squares.detach()).sum()
        return {
            "restore": per_count(distance, count, normaliser="values"),
            "psnr": shown(torch.stack([squared, count]), _psnr, normaliser="squares"),
        }


def _psnr(sums: Tensor) -> Tensor:
    """Return the PSNR in dB of (sum of squared differences, number of values), for values in [0, 1]."""
    return -10.0 * torch.log10((sums[0] / sums[1].clamp(min=1.0)).clamp(min=LEAST_MSE))


build = CharbonnierLoss
