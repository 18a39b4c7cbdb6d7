"""Triton kernels of two BatchNorms whose maps are added and then activated, act(norm(x) + norm(z)): a branch of 3x3 and one of 1x1, say.

One after the other, two norms, a sum and an activation read and write maps 24 times, forward and backward; here that is 13. Otherwise as `kernels`:
the statistics of both maps are summed in one launch, and ranks meet once for both.

The table is [2, ranks, 3, C], x before z. Sums of a gradient are of dz, of dz * xhat and of dz * zhat, where dz is the gradient at the activation's
input, which is that of both norms.
"""

from __future__ import annotations

import triton
import triton.language as tl

from libreyolo.nn.fused.kernels import (
    LINE,
    LINES,
    PLAIN_INTEGERS,
    _activate,
    _add_up,
    _heard,
    _keep,
    _keep_others,
    _leave,
    _merged,
    _move,
    _of_gradient,
    _place,
    _slope,
    _tell,
)


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def pair_sums_kernel(
    x_ptr: tl.tensor, z_ptr: tl.tensor, parts_ptr: tl.tensor, tickets_ptr: tl.tensor, table_ptr: tl.tensor, place_ptr: tl.tensor, M: tl.tensor,
    C: tl.tensor, parts: tl.tensor, rank: tl.tensor, turn: tl.tensor,
    BM: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr, RANKS: tl.constexpr, MEET: tl.constexpr,
) -> None:  # fmt: skip
    """Row `rank` of both tables; with MEET the rows of all ranks. parts is room for two of `sums_kernel`, one after the other."""
    part, columns, inside = _place(C, BC)
    x_shift = tl.load(x_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    z_shift = tl.load(z_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    x_sum = tl.zeros([BM, BC], dtype=tl.float32)
    x_squares = tl.zeros([BM, BC], dtype=tl.float32)
    z_sum = tl.zeros([BM, BC], dtype=tl.float32)
    z_squares = tl.zeros([BM, BC], dtype=tl.float32)
    blocks = tl.cdiv(M, BM)
    for done in range(part, blocks, parts):
        row = (blocks - 1 - done) * BM + tl.arange(0, BM)
        mask = (row < M)[:, None] & inside[None, :]
        offset = row.to(tl.int64)[:, None] * C + columns[None, :]
        x = tl.where(mask, tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32) - x_shift[None, :], 0.0)
        z = tl.where(mask, tl.load(z_ptr + offset, mask=mask, other=0.0).to(tl.float32) - z_shift[None, :], 0.0)
        x_sum += x
        x_squares += x * x
        z_sum += z
        z_squares += z * z
    z_parts_ptr = parts_ptr + parts * 2 * C
    tl.store(z_parts_ptr + part * 2 * C + columns, tl.sum(z_sum, axis=0), mask=inside)
    tl.store(z_parts_ptr + part * 2 * C + C + columns, tl.sum(z_squares, axis=0), mask=inside)
    left = _leave(parts_ptr, tickets_ptr, part, columns, inside, C, tl.sum(x_sum, axis=0), tl.sum(x_squares, axis=0))
    if left == parts - 1:
        count = M.to(tl.float32)
        z_table_ptr = table_ptr + RANKS * 3 * C
        z_place_ptr = place_ptr + 3 * LINE
        total, squares = _add_up(parts_ptr, tickets_ptr, columns, inside, parts, C, BP)
        squares = tl.maximum(squares - total * total / count, 0.0)
        _keep(table_ptr, place_ptr, columns, inside, C, total / count + x_shift, squares, total * 0.0 + count, rank, turn, MEET)
        total, squares = _add_up(z_parts_ptr, tickets_ptr, columns, inside, parts, C, BP)
        squares = tl.maximum(squares - total * total / count, 0.0)
        _keep(z_table_ptr, z_place_ptr, columns, inside, C, total / count + z_shift, squares, total * 0.0 + count, rank, turn, MEET)
        if MEET:
            _keep_others(table_ptr, place_ptr, columns, inside, C, rank, turn, RANKS)
            _keep_others(z_table_ptr, z_place_ptr, columns, inside, C, rank, turn, RANKS)


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def pair_apply_kernel(
    x_ptr: tl.tensor, z_ptr: tl.tensor, y_ptr: tl.tensor, table_ptr: tl.tensor,
    w_ptr: tl.tensor, b_ptr: tl.tensor, v_ptr: tl.tensor, c_ptr: tl.tensor,
    x_mean_ptr: tl.tensor, x_var_ptr: tl.tensor, x_tracked_ptr: tl.tensor, z_mean_ptr: tl.tensor, z_var_ptr: tl.tensor, z_tracked_ptr: tl.tensor,
    M: tl.tensor, C: tl.tensor, eps: tl.tensor, momentum: tl.tensor,
    BM: tl.constexpr, BC: tl.constexpr, RANKS: tl.constexpr, ACT: tl.constexpr,
) -> None:  # fmt: skip
    """y = act(xhat * w + b + zhat * v + c); running statistics and counts of batches of both move."""
    block, columns, inside = _place(C, BC)
    x_mean, x_squares, count = _merged(table_ptr, columns, inside, C, RANKS)
    z_mean, z_squares, count = _merged(table_ptr + RANKS * 3 * C, columns, inside, C, RANKS)
    if block == 0:
        _move(x_mean_ptr, x_var_ptr, x_tracked_ptr, columns, inside, x_mean, x_squares, count, momentum)
        _move(z_mean_ptr, z_var_ptr, z_tracked_ptr, columns, inside, z_mean, z_squares, count, momentum)
    w = tl.load(w_ptr + columns, mask=inside, other=0.0) / tl.sqrt(x_squares / count + eps)
    v = tl.load(v_ptr + columns, mask=inside, other=0.0) / tl.sqrt(z_squares / count + eps)
    bias = tl.load(b_ptr + columns, mask=inside, other=0.0) + tl.load(c_ptr + columns, mask=inside, other=0.0)
    row = block * BM + tl.arange(0, BM)
    mask = (row < M)[:, None] & inside[None, :]
    offset = row.to(tl.int64)[:, None] * C + columns[None, :]
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32) - x_mean[None, :]
    z = tl.load(z_ptr + offset, mask=mask, other=0.0).to(tl.float32) - z_mean[None, :]
    y = _activate(x * w[None, :] + z * v[None, :] + bias[None, :], ACT)
    tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def pair_gradient_sums_kernel(
    x_ptr: tl.tensor, z_ptr: tl.tensor, g_ptr: tl.tensor, parts_ptr: tl.tensor, tickets_ptr: tl.tensor, out_ptr: tl.tensor, table_ptr: tl.tensor,
    w_ptr: tl.tensor, b_ptr: tl.tensor, v_ptr: tl.tensor, c_ptr: tl.tensor, place_ptr: tl.tensor, M: tl.tensor, C: tl.tensor, G: tl.tensor,
    parts: tl.tensor, rank: tl.tensor, turn: tl.tensor, eps: tl.tensor,
    BM: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr, RANKS: tl.constexpr, ACT: tl.constexpr, MEET: tl.constexpr, APART: tl.constexpr,
) -> None:  # fmt: skip
    """out [4, C]: over the rows of this rank the sums of dz, dz * xhat, dz * zhat and, for the second bias, dz again.

    Of several ranks, out is [2, 4, C]; the first three of the second part are those of all ranks with MEET, else those of this rank.
    """
    part, columns, inside = _place(C, BC)
    x_mean, x_squares, count = _merged(table_ptr, columns, inside, C, RANKS)
    z_mean, z_squares, count = _merged(table_ptr + RANKS * 3 * C, columns, inside, C, RANKS)
    x_rstd, z_rstd = 1.0 / tl.sqrt(x_squares / count + eps), 1.0 / tl.sqrt(z_squares / count + eps)
    w, v = tl.load(w_ptr + columns, mask=inside, other=0.0), tl.load(v_ptr + columns, mask=inside, other=0.0)
    bias = tl.load(b_ptr + columns, mask=inside, other=0.0) + tl.load(c_ptr + columns, mask=inside, other=0.0)
    first = tl.zeros([BM, BC], dtype=tl.float32)
    second = tl.zeros([BM, BC], dtype=tl.float32)
    third = tl.zeros([BM, BC], dtype=tl.float32)
    blocks = tl.cdiv(M, BM)
    for done in range(part, blocks, parts):
        row = (blocks - 1 - done) * BM + tl.arange(0, BM)
        mask = (row < M)[:, None] & inside[None, :]
        offset = row.to(tl.int64)[:, None] * C + columns[None, :]
        xhat = (tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32) - x_mean[None, :]) * x_rstd[None, :]
        zhat = (tl.load(z_ptr + offset, mask=mask, other=0.0).to(tl.float32) - z_mean[None, :]) * z_rstd[None, :]
        g = tl.load(g_ptr + _of_gradient(row, columns, offset, G, APART), mask=mask, other=0.0).to(tl.float32)
        dz = g * _slope(xhat * w[None, :] + zhat * v[None, :] + bias[None, :], ACT)
        first += dz
        second += dz * xhat
        third += dz * zhat
    z_parts_ptr = parts_ptr + parts * 2 * C
    of_part = tl.sum(third, axis=0)
    tl.store(z_parts_ptr + part * 2 * C + columns, of_part, mask=inside)
    tl.store(z_parts_ptr + part * 2 * C + C + columns, of_part, mask=inside)  # `_add_up` adds two sums
    left = _leave(parts_ptr, tickets_ptr, part, columns, inside, C, tl.sum(first, axis=0), tl.sum(second, axis=0))
    if left == parts - 1:
        total, total_xhat = _add_up(parts_ptr, tickets_ptr, columns, inside, parts, C, BP)
        total_zhat, _ = _add_up(z_parts_ptr, tickets_ptr, columns, inside, parts, C, BP)
        tl.store(out_ptr + columns, total, mask=inside)
        tl.store(out_ptr + C + columns, total_xhat, mask=inside)
        tl.store(out_ptr + 2 * C + columns, total_zhat, mask=inside)
        tl.store(out_ptr + 3 * C + columns, total, mask=inside)
        if MEET:
            own_ptr = place_ptr + rank * LINES * LINE
            _tell(own_ptr, columns, inside, total, turn)
            _tell(own_ptr + LINE, columns, inside, total_xhat, turn)
            _tell(own_ptr + 2 * LINE, columns, inside, total_zhat, turn)
            of_this, of_this_xhat, of_this_zhat = total, total_xhat, total_zhat
            total = tl.zeros([BC], dtype=tl.float32)
            total_xhat = tl.zeros([BC], dtype=tl.float32)
            total_zhat = tl.zeros([BC], dtype=tl.float32)
            for other in range(RANKS):  # in the same order on every rank, which then all have the same sums
                if other == rank:
                    total += of_this
                    total_xhat += of_this_xhat
                    total_zhat += of_this_zhat
                else:
                    more, more_xhat, more_zhat = _heard(place_ptr + other * LINES * LINE, columns, inside, turn, 3)
                    total += more
                    total_xhat += more_xhat
                    total_zhat += more_zhat
        if RANKS > 1:
            tl.store(out_ptr + 4 * C + columns, total, mask=inside)
            tl.store(out_ptr + 5 * C + columns, total_xhat, mask=inside)
            tl.store(out_ptr + 6 * C + columns, total_zhat, mask=inside)


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def pair_gradient_kernel(
    x_ptr: tl.tensor, z_ptr: tl.tensor, g_ptr: tl.tensor, dx_ptr: tl.tensor, dz_ptr: tl.tensor, sums_ptr: tl.tensor, table_ptr: tl.tensor,
    w_ptr: tl.tensor, b_ptr: tl.tensor, v_ptr: tl.tensor, c_ptr: tl.tensor, M: tl.tensor, C: tl.tensor, G: tl.tensor, eps: tl.tensor,
    BM: tl.constexpr, BC: tl.constexpr, RANKS: tl.constexpr, ACT: tl.constexpr, APART: tl.constexpr,
) -> None:  # fmt: skip
    """The gradients of both maps, as `gradient_kernel` has that of one."""
    block, columns, inside = _place(C, BC)
    x_mean, x_squares, count = _merged(table_ptr, columns, inside, C, RANKS)
    z_mean, z_squares, count = _merged(table_ptr + RANKS * 3 * C, columns, inside, C, RANKS)
    x_rstd, z_rstd = 1.0 / tl.sqrt(x_squares / count + eps), 1.0 / tl.sqrt(z_squares / count + eps)
    w, v = tl.load(w_ptr + columns, mask=inside, other=0.0), tl.load(v_ptr + columns, mask=inside, other=0.0)
    bias = tl.load(b_ptr + columns, mask=inside, other=0.0) + tl.load(c_ptr + columns, mask=inside, other=0.0)
    if RANKS > 1:
        sums_ptr += 4 * C
    m0 = tl.load(sums_ptr + columns, mask=inside, other=0.0) / count
    m1 = tl.load(sums_ptr + C + columns, mask=inside, other=0.0) / count
    m2 = tl.load(sums_ptr + 2 * C + columns, mask=inside, other=0.0) / count
    row = block * BM + tl.arange(0, BM)
    mask = (row < M)[:, None] & inside[None, :]
    offset = row.to(tl.int64)[:, None] * C + columns[None, :]
    xhat = (tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32) - x_mean[None, :]) * x_rstd[None, :]
    zhat = (tl.load(z_ptr + offset, mask=mask, other=0.0).to(tl.float32) - z_mean[None, :]) * z_rstd[None, :]
    g = tl.load(g_ptr + _of_gradient(row, columns, offset, G, APART), mask=mask, other=0.0).to(tl.float32)
    rest = g * _slope(xhat * w[None, :] + zhat * v[None, :] + bias[None, :], ACT) - m0[None, :]
    dx = (w * x_rstd)[None, :] * (rest - xhat * m1[None, :])
    dz = (v * z_rstd)[None, :] * (rest - zhat * m2[None, :])
    tl.store(dx_ptr + offset, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    tl.store(dz_ptr + offset, dz.to(dz_ptr.dtype.element_ty), mask=mask)
