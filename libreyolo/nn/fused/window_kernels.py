"""Triton kernel of 2x2 means of stride 1 over channels_last maps [B, H, W, C]. Arithmetic in float32.

Seen as rows of W * C numbers, the mean at place t takes t and t + C of two rows: contiguous loads whatever C is. A program keeps the sum of a row for
the row below it, so that every number comes from memory about once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def means_kernel(
    x_ptr: tl.tensor, y_ptr: tl.tensor, H: tl.tensor, C: tl.tensor, x_length: tl.tensor, y_length: tl.tensor,
    PADDING: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """y: means of x with PADDING (0 or 1) rows and columns of 0 on every side. Lengths: W * C of each. H: rows of x."""
    y_rows = H - 1 + 2 * PADDING
    blocks = tl.cdiv(y_length, BLOCK)
    bands = tl.cdiv(y_rows, ROWS)
    band = tl.program_id(0) // blocks
    image = (band // bands).to(tl.int64)
    top = (band % bands) * ROWS
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    wanted = place < y_length
    left = place - PADDING * C
    right = left + C
    above = tl.zeros([BLOCK], dtype=tl.float32)
    for step in tl.static_range(ROWS + 1):
        row = top + step - PADDING
        inside = (row >= 0) & (row < H)
        start = x_ptr + (image * H + row) * x_length
        here = tl.load(start + left, mask=wanted & inside & (left >= 0), other=0.0).to(tl.float32)
        here += tl.load(start + right, mask=wanted & inside & (right < x_length), other=0.0).to(tl.float32)
        if step > 0:
            y_row = top + step - 1
            mean = (above + here) * 0.25
            tl.store(y_ptr + (image * y_rows + y_row) * y_length + place, mean.to(y_ptr.dtype.element_ty), mask=wanted & (y_row < y_rows))
        above = here
