"""Triton kernels of BatchNorm with its activation over rows [M, C], which is a channels_last map seen flat. Arithmetic in float32.

BatchNorm and SiLU one after the other read an activation three times and write it twice forward, and read six times and write twice backward.
Here it is two reads and a write forward (statistics; then normalise and activate at once), four reads and a write backward: the normalised map is
worked out again from the input, so it is not kept either.

Sums over rows are shifted by the first row: sums of squares of raw values cancel where a channel's mean is large.

Triton's compiler looks up every name in a signature and knows no other module's than its own: arguments are `tl.tensor`.
"""

from __future__ import annotations

import triton
import triton.language as tl

NONE, SILU, RELU = 0, 1, 2


@triton.jit
def _activate(z: tl.tensor, ACT: tl.constexpr) -> tl.tensor:
    if ACT == 1:
        return z * tl.sigmoid(z)
    if ACT == 2:
        return tl.maximum(z, 0.0)
    return z


@triton.jit
def _slope(z: tl.tensor, ACT: tl.constexpr) -> tl.tensor:
    if ACT == 1:
        s = tl.sigmoid(z)
        return s * (1.0 + z * (1.0 - s))
    if ACT == 2:
        return tl.where(z > 0.0, 1.0, 0.0)
    return z * 0.0 + 1.0


@triton.jit
def sums_kernel(x_ptr: tl.tensor, out_ptr: tl.tensor, M: tl.tensor, C: tl.tensor, rows: tl.tensor, BM: tl.constexpr, BC: tl.constexpr) -> None:
    """out [P, 2, C]: program (p, c) adds x - x[0] and its square over rows p * rows ... (p + 1) * rows."""
    part = tl.program_id(0)
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = columns < C
    shift = tl.load(x_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros([BC], dtype=tl.float32)
    second = tl.zeros([BC], dtype=tl.float32)
    begin = part * rows
    for start in range(0, rows, BM):
        row = begin + start + tl.arange(0, BM)
        mask = (row < M)[:, None] & (row < begin + rows)[:, None] & inside[None, :]
        offset = row.to(tl.int64)[:, None] * C + columns[None, :]
        value = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32) - shift[None, :]
        value = tl.where(mask, value, 0.0)
        first += tl.sum(value, axis=0)
        second += tl.sum(value * value, axis=0)
    tl.store(out_ptr + part * 2 * C + columns, first, mask=inside)
    tl.store(out_ptr + part * 2 * C + C + columns, second, mask=inside)


@triton.jit
def _add_up(sums_ptr: tl.tensor, columns: tl.tensor, inside: tl.tensor, P: tl.tensor, C: tl.tensor, BP: tl.constexpr, BC: tl.constexpr) -> tl.tensor:
    """Add the parts of sums [P, 2, C]."""
    first = tl.zeros([BC], dtype=tl.float32)
    second = tl.zeros([BC], dtype=tl.float32)
    for start in range(0, P, BP):
        part = start + tl.arange(0, BP)
        mask = (part < P)[:, None] & inside[None, :]
        offset = part[:, None] * 2 * C + columns[None, :]
        first += tl.sum(tl.load(sums_ptr + offset, mask=mask, other=0.0), axis=0)
        second += tl.sum(tl.load(sums_ptr + offset + C, mask=mask, other=0.0), axis=0)
    return first, second


@triton.jit
def statistics_kernel(
    x_ptr: tl.tensor, sums_ptr: tl.tensor, mean_ptr: tl.tensor, rstd_ptr: tl.tensor, running_mean_ptr: tl.tensor,
    running_var_ptr: tl.tensor, P: tl.tensor, C: tl.tensor, M: tl.tensor,
    eps: tl.tensor, momentum: tl.tensor, BP: tl.constexpr, BC: tl.constexpr,
) -> None:  # fmt: skip
    """From the shifted sums to mean and 1 / sqrt(var + eps), and the running statistics moved towards them (variance unbiased)."""
    columns = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = columns < C
    first, second = _add_up(sums_ptr, columns, inside, P, C, BP, BC)
    mean = first / M + tl.load(x_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    squares = tl.maximum(second - first * first / M, 0.0)
    tl.store(mean_ptr + columns, mean, mask=inside)
    tl.store(rstd_ptr + columns, 1.0 / tl.sqrt(squares / M + eps), mask=inside)
    running = tl.load(running_mean_ptr + columns, mask=inside, other=0.0)
    tl.store(running_mean_ptr + columns, running + momentum * (mean - running), mask=inside)
    running = tl.load(running_var_ptr + columns, mask=inside, other=0.0)
    tl.store(running_var_ptr + columns, running + momentum * (squares / tl.maximum(M - 1.0, 1.0) - running), mask=inside)


@triton.jit
def gradient_means_kernel(
    sums_ptr: tl.tensor, own_ptr: tl.tensor, means_ptr: tl.tensor, P: tl.tensor, C: tl.tensor, M: tl.tensor, BP: tl.constexpr, BC: tl.constexpr
) -> None:
    """own [2, C]: the parts of `gradient_sums_kernel` added up, which are the gradients of bias and weight; means [2, C]: the same by row."""
    columns = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = columns < C
    first, second = _add_up(sums_ptr, columns, inside, P, C, BP, BC)
    tl.store(own_ptr + columns, first, mask=inside)
    tl.store(own_ptr + C + columns, second, mask=inside)
    tl.store(means_ptr + columns, first / M, mask=inside)
    tl.store(means_ptr + C + columns, second / M, mask=inside)


@triton.jit
def apply_kernel(
    x_ptr: tl.tensor, y_ptr: tl.tensor, mean_ptr: tl.tensor, rstd_ptr: tl.tensor, w_ptr: tl.tensor, b_ptr: tl.tensor, M: tl.tensor, C: tl.tensor,
    BM: tl.constexpr, BC: tl.constexpr, ACT: tl.constexpr,
) -> None:  # fmt: skip
    """y = act((x - mean) * rstd * w + b)."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = columns < C
    mask = (row < M)[:, None] & inside[None, :]
    offset = row.to(tl.int64)[:, None] * C + columns[None, :]
    mean = tl.load(mean_ptr + columns, mask=inside, other=0.0)
    scale = tl.load(rstd_ptr + columns, mask=inside, other=0.0) * tl.load(w_ptr + columns, mask=inside, other=0.0)
    bias = tl.load(b_ptr + columns, mask=inside, other=0.0)
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32)
    y = _activate((x - mean[None, :]) * scale[None, :] + bias[None, :], ACT)
    tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gradient_sums_kernel(
    x_ptr: tl.tensor, g_ptr: tl.tensor, out_ptr: tl.tensor, mean_ptr: tl.tensor, rstd_ptr: tl.tensor, w_ptr: tl.tensor, b_ptr: tl.tensor,
    M: tl.tensor, C: tl.tensor, rows: tl.tensor,
    BM: tl.constexpr, BC: tl.constexpr, ACT: tl.constexpr,
) -> None:  # fmt: skip
    """out [P, 2, C]: over each part's rows the sums of dz and of dz * xhat, where dz is the gradient at the activation's input."""
    part = tl.program_id(0)
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = columns < C
    mean = tl.load(mean_ptr + columns, mask=inside, other=0.0)
    rstd = tl.load(rstd_ptr + columns, mask=inside, other=0.0)
    weight = tl.load(w_ptr + columns, mask=inside, other=0.0)
    bias = tl.load(b_ptr + columns, mask=inside, other=0.0)
    first = tl.zeros([BC], dtype=tl.float32)
    second = tl.zeros([BC], dtype=tl.float32)
    begin = part * rows
    for start in range(0, rows, BM):
        row = begin + start + tl.arange(0, BM)
        mask = (row < M)[:, None] & (row < begin + rows)[:, None] & inside[None, :]
        offset = row.to(tl.int64)[:, None] * C + columns[None, :]
        xhat = (tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
        g = tl.load(g_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        dz = g * _slope(xhat * weight[None, :] + bias[None, :], ACT)
        first += tl.sum(dz, axis=0)
        second += tl.sum(dz * xhat, axis=0)
    tl.store(out_ptr + part * 2 * C + columns, first, mask=inside)
    tl.store(out_ptr + part * 2 * C + C + columns, second, mask=inside)


@triton.jit
def gradient_kernel(
    x_ptr: tl.tensor, g_ptr: tl.tensor, dx_ptr: tl.tensor, mean_ptr: tl.tensor, rstd_ptr: tl.tensor, w_ptr: tl.tensor, b_ptr: tl.tensor,
    m0_ptr: tl.tensor, m1_ptr: tl.tensor, M: tl.tensor, C: tl.tensor,
    BM: tl.constexpr, BC: tl.constexpr, ACT: tl.constexpr,
) -> None:  # fmt: skip
    """dx = w * rstd * (dz - m0 - xhat * m1), with m0 and m1 the means of dz and dz * xhat (Ioffe and Szegedy, arXiv 1502.03167)."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = columns < C
    mask = (row < M)[:, None] & inside[None, :]
    offset = row.to(tl.int64)[:, None] * C + columns[None, :]
    mean = tl.load(mean_ptr + columns, mask=inside, other=0.0)
    rstd = tl.load(rstd_ptr + columns, mask=inside, other=0.0)
    weight = tl.load(w_ptr + columns, mask=inside, other=0.0)
    bias = tl.load(b_ptr + columns, mask=inside, other=0.0)
    m0 = tl.load(m0_ptr + columns, mask=inside, other=0.0)
    m1 = tl.load(m1_ptr + columns, mask=inside, other=0.0)
    xhat = (tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    g = tl.load(g_ptr + offset, mask=mask, other=0.0).to(tl.float32)
    dz = g * _slope(xhat * weight[None, :] + bias[None, :], ACT)
    dx = (weight * rstd)[None, :] * (dz - m0[None, :] - xhat * m1[None, :])
    tl.store(dx_ptr + offset, dx.to(dx_ptr.dtype.element_ty), mask=mask)
