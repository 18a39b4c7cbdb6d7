"""Triton kernels of BatchNorm with its activation over rows [M, C], which is a channels_last map seen flat. Arithmetic in float32.

BatchNorm and SiLU one after the other read an activation three times and write it twice forward, and read six times and write twice backward.
Here it is two reads and a write forward (statistics; then normalise and activate at once), four reads and a write backward: the normalised map is
worked out again from the input, so it is not kept either. That is four launches a layer.

Statistics of a layer are a table [ranks, 3, C] of float32: mean, sum of squared deviations from it, and number of rows, of each rank. Whoever needs
the statistics merges the rows itself; one process has a table of one row, so many processes run the same code.

A sum over rows is shared by `parts` programs for every block of columns. The one that is last to leave its share adds all of them up, in the order of
the parts and not of their arrival: the same numbers in every run. Sums walk from the last row to the first and what follows them from the first to
the last: a map was just written, its end is still in the cache, and then its beginning is.

With MEET that last program also tells its sums to the other ranks of this host and waits for theirs, through memory that all their GPUs see
(`exchange.py`); the host launches no more than for one rank. At most a few programs wait, and nothing that runs on this GPU waits for them: no rank
can keep another from coming.

Triton's compiler looks up every name in a signature and knows no other module's than its own: arguments are `tl.tensor`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from libreyolo.nn.fused import exchange

NONE, SILU, RELU = ACTIVATIONS = 0, 1, 2
# Of the memory in which ranks meet: every rank has so many lines there, each so long.
LINES: tl.constexpr = tl.constexpr(exchange.LINES)
LINE: tl.constexpr = tl.constexpr(exchange.WIDEST)
# Arguments whose values differ from layer to layer: code that is special for a value of 1, or of a multiple of 16, would only be compiled more often.
PLAIN_INTEGERS = ["M", "parts", "rank", "turn"]


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
def _place(C: tl.tensor, BC: tl.constexpr) -> tl.tensor:
    """Return this program's block of rows, its columns and which of them there are: one axis of programs, neighbours share rows."""
    blocks = tl.cdiv(C, BC)
    columns = (tl.program_id(0) % blocks) * BC + tl.arange(0, BC)
    return tl.program_id(0) // blocks, columns, columns < C


@triton.jit
def _merged(table_ptr: tl.tensor, columns: tl.tensor, inside: tl.tensor, C: tl.tensor, RANKS: tl.constexpr) -> tl.tensor:
    """Return mean, sum of squared deviations and number of rows over all ranks (Chan, Golub and LeVeque 1983, one rank after the other)."""
    mean = tl.load(table_ptr + columns, mask=inside, other=0.0)
    squares = tl.load(table_ptr + C + columns, mask=inside, other=0.0)
    count = tl.load(table_ptr + 2 * C + columns, mask=inside, other=1.0)
    for rank in range(1, RANKS):
        row_ptr = table_ptr + rank * 3 * C + columns
        more = tl.load(row_ptr + 2 * C, mask=inside, other=1.0)
        apart = tl.load(row_ptr, mask=inside, other=0.0) - mean
        share = more / (count + more)
        squares += tl.load(row_ptr + C, mask=inside, other=0.0) + apart * apart * count * share
        mean += apart * share
        count += more
    return mean, squares, count


@triton.jit
def _leave(
    parts_ptr: tl.tensor, tickets_ptr: tl.tensor, part: tl.tensor, columns: tl.tensor, inside: tl.tensor, C: tl.tensor,
    first: tl.tensor, second: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Store this program's share of two sums, [parts, 2, C], and return how many others had done so before it."""
    tl.store(parts_ptr + part * 2 * C + columns, first, mask=inside)
    tl.store(parts_ptr + part * 2 * C + C + columns, second, mask=inside)
    tl.debug_barrier()  # one thread draws the ticket, after the stores of all of them
    return tl.atomic_add(tickets_ptr + tl.program_id(0) % tl.cdiv(C, columns.shape[0]), 1, sem="acq_rel")


@triton.jit
def _add_up(
    parts_ptr: tl.tensor, tickets_ptr: tl.tensor, columns: tl.tensor, inside: tl.tensor, parts: tl.tensor, C: tl.tensor, BP: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add up all shares of the two sums, for the program that was last to leave its own; tickets are 0 again for the next kernel."""
    tl.debug_barrier()
    first = tl.zeros([BP, columns.shape[0]], dtype=tl.float32)
    second = tl.zeros([BP, columns.shape[0]], dtype=tl.float32)
    for start in range(0, parts, BP):
        part = start + tl.arange(0, BP)
        mask = (part < parts)[:, None] & inside[None, :]
        place = parts_ptr + part[:, None] * 2 * C + columns[None, :]
        # Not from the cache of this multiprocessor, which does not see what others wrote.
        first += tl.load(place, mask=mask, other=0.0, cache_modifier=".cg")
        second += tl.load(place + C, mask=mask, other=0.0, cache_modifier=".cg")
    tl.store(tickets_ptr + tl.program_id(0) % tl.cdiv(C, columns.shape[0]), 0)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
def _tell(place_ptr: tl.tensor, columns: tl.tensor, inside: tl.tensor, number: tl.tensor, turn: tl.tensor) -> None:
    """Store float32 numbers where the other ranks read them, each in one word with this turn."""
    low = number.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    # Through all caches: the other ranks read what lies in memory.
    tl.store(place_ptr + columns, (turn.to(tl.int64) << 32) | low, mask=inside, cache_modifier=".wt")


@triton.jit
def _is_late(word: tl.tensor, inside: tl.tensor, turn: tl.tensor) -> tl.tensor:
    """Return 1 where a word of another turn lies, 0 elsewhere."""
    return (inside & ((word >> 32) != turn.to(tl.int64))).to(tl.int32)


@triton.jit
def _heard(place_ptr: tl.tensor, columns: tl.tensor, inside: tl.tensor, turn: tl.tensor, COUNT: tl.constexpr) -> tl.tensor:
    """Return another rank's numbers of this turn, from its first two lines and from the last of COUNT, when all of them are there."""
    first = tl.zeros([columns.shape[0]], dtype=tl.int64)
    second, last = first, first
    late = 1
    while late > 0:  # one way there and back for all three lines
        first = tl.load(place_ptr + columns, mask=inside, other=0, volatile=True)
        second = tl.load(place_ptr + LINE + columns, mask=inside, other=0, volatile=True)
        last = tl.load(place_ptr + (COUNT - 1) * LINE + columns, mask=inside, other=0, volatile=True)
        late = tl.max(_is_late(first, inside, turn) | _is_late(second, inside, turn) | _is_late(last, inside, turn), axis=0)
    return _number(first), _number(second), _number(last)


@triton.jit
def _number(word: tl.tensor) -> tl.tensor:
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _keep(
    table_ptr: tl.tensor, place_ptr: tl.tensor, columns: tl.tensor, inside: tl.tensor, C: tl.tensor, mean: tl.tensor, squares: tl.tensor,
    count: tl.tensor, rank: tl.tensor, turn: tl.tensor, MEET: tl.constexpr,
) -> None:  # fmt: skip
    """Store a rank's statistics in its row of the table; with MEET also where the others read them."""
    row_ptr = table_ptr + rank * 3 * C + columns
    tl.store(row_ptr, mean, mask=inside)
    tl.store(row_ptr + C, squares, mask=inside)
    tl.store(row_ptr + 2 * C, count, mask=inside)
    if MEET:
        own_ptr = place_ptr + rank * LINES * LINE
        _tell(own_ptr, columns, inside, mean, turn)
        _tell(own_ptr + LINE, columns, inside, squares, turn)
        _tell(own_ptr + 2 * LINE, columns, inside, count, turn)


@triton.jit
def _keep_others(
    table_ptr: tl.tensor, place_ptr: tl.tensor, columns: tl.tensor, inside: tl.tensor, C: tl.tensor, rank: tl.tensor, turn: tl.tensor,
    RANKS: tl.constexpr,
) -> None:  # fmt: skip
    """Store the statistics of the other ranks in their rows of the table, when they are there."""
    for other in range(RANKS):
        if other != rank:
            mean, squares, count = _heard(place_ptr + other * LINES * LINE, columns, inside, turn, 3)
            row_ptr = table_ptr + other * 3 * C + columns
            tl.store(row_ptr, mean, mask=inside)
            tl.store(row_ptr + C, squares, mask=inside)
            tl.store(row_ptr + 2 * C, count, mask=inside)


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def sums_kernel(
    x_ptr: tl.tensor, parts_ptr: tl.tensor, tickets_ptr: tl.tensor, table_ptr: tl.tensor, place_ptr: tl.tensor, M: tl.tensor,
    C: tl.tensor, parts: tl.tensor, rank: tl.tensor, turn: tl.tensor,
    BM: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr, RANKS: tl.constexpr, MEET: tl.constexpr,
) -> None:  # fmt: skip
    """Row `rank` of the table; with MEET the rows of all ranks.

    Sums are shifted by x[0]: sums of squares of raw values cancel where a channel's mean is large. place: where the ranks meet, and `turn`, the
    number of this meeting; without MEET nobody looks at them.
    """
    part, columns, inside = _place(C, BC)
    shift = tl.load(x_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros([BM, BC], dtype=tl.float32)
    second = tl.zeros([BM, BC], dtype=tl.float32)
    blocks = tl.cdiv(M, BM)
    for done in range(part, blocks, parts):
        row = (blocks - 1 - done) * BM + tl.arange(0, BM)
        mask = (row < M)[:, None] & inside[None, :]
        offset = row.to(tl.int64)[:, None] * C + columns[None, :]
        value = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32) - shift[None, :]
        value = tl.where(mask, value, 0.0)
        first += value
        second += value * value
    left = _leave(parts_ptr, tickets_ptr, part, columns, inside, C, tl.sum(first, axis=0), tl.sum(second, axis=0))
    if left == parts - 1:
        total, squares = _add_up(parts_ptr, tickets_ptr, columns, inside, parts, C, BP)
        count = M.to(tl.float32)
        mean, squares = total / count + shift, tl.maximum(squares - total * total / count, 0.0)
        count = total * 0.0 + count
        _keep(table_ptr, place_ptr, columns, inside, C, mean, squares, count, rank, turn, MEET)
        if MEET:
            _keep_others(table_ptr, place_ptr, columns, inside, C, rank, turn, RANKS)


@triton.jit
def _move(
    mean_ptr: tl.tensor, var_ptr: tl.tensor, tracked_ptr: tl.tensor, columns: tl.tensor, inside: tl.tensor, mean: tl.tensor, squares: tl.tensor,
    count: tl.tensor, momentum: tl.tensor,
) -> None:  # fmt: skip
    """Move running statistics of a block of columns towards the batch's (variance unbiased), tracked batches by one."""
    running = tl.load(mean_ptr + columns, mask=inside, other=0.0)
    tl.store(mean_ptr + columns, running + momentum * (mean - running), mask=inside)
    running = tl.load(var_ptr + columns, mask=inside, other=0.0)
    tl.store(var_ptr + columns, running + momentum * (squares / tl.maximum(count - 1.0, 1.0) - running), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(tracked_ptr, tl.load(tracked_ptr) + 1)


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def apply_kernel(
    x_ptr: tl.tensor, y_ptr: tl.tensor, table_ptr: tl.tensor, w_ptr: tl.tensor, b_ptr: tl.tensor, running_mean_ptr: tl.tensor,
    running_var_ptr: tl.tensor, tracked_ptr: tl.tensor, M: tl.tensor, C: tl.tensor, eps: tl.tensor, momentum: tl.tensor,
    BM: tl.constexpr, BC: tl.constexpr, RANKS: tl.constexpr, ACT: tl.constexpr,
) -> None:  # fmt: skip
    """y = act((x - mean) / sqrt(var + eps) * w + b); running statistics and the count of batches move."""
    block, columns, inside = _place(C, BC)
    mean, squares, count = _merged(table_ptr, columns, inside, C, RANKS)
    if block == 0:
        _move(running_mean_ptr, running_var_ptr, tracked_ptr, columns, inside, mean, squares, count, momentum)
    scale = tl.load(w_ptr + columns, mask=inside, other=0.0) / tl.sqrt(squares / count + eps)
    bias = tl.load(b_ptr + columns, mask=inside, other=0.0)
    row = block * BM + tl.arange(0, BM)
    mask = (row < M)[:, None] & inside[None, :]
    offset = row.to(tl.int64)[:, None] * C + columns[None, :]
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32)
    y = _activate((x - mean[None, :]) * scale[None, :] + bias[None, :], ACT)
    tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _of_gradient(row: tl.tensor, columns: tl.tensor, offset: tl.tensor, G: tl.tensor, APART: tl.constexpr) -> tl.tensor:
    """Return where numbers of the gradient lie: at the `offset` of the map's, or in rows of their own distance."""
    if APART:
        return row.to(tl.int64)[:, None] * G + columns[None, :]
    return offset


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def gradient_sums_kernel(
    x_ptr: tl.tensor, g_ptr: tl.tensor, parts_ptr: tl.tensor, tickets_ptr: tl.tensor, out_ptr: tl.tensor, table_ptr: tl.tensor, w_ptr: tl.tensor,
    b_ptr: tl.tensor, place_ptr: tl.tensor, M: tl.tensor, C: tl.tensor, G: tl.tensor, parts: tl.tensor, rank: tl.tensor,
    turn: tl.tensor, eps: tl.tensor,
    BM: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr, RANKS: tl.constexpr, ACT: tl.constexpr, MEET: tl.constexpr, APART: tl.constexpr,
) -> None:  # fmt: skip
    """out [2, C]: over the rows of this rank the sums of dz (the bias's gradient) and of dz * xhat (the weight's).

    Of several ranks, out is [2, 2, C]; the second pair is that of all ranks with MEET, else that of this rank again. dz is the gradient at the
    activation's input, xhat the normalised map. place, turn: as of `sums_kernel`. With APART rows of the gradient g begin every G numbers.
    """
    part, columns, inside = _place(C, BC)
    mean, squares, count = _merged(table_ptr, columns, inside, C, RANKS)
    rstd = 1.0 / tl.sqrt(squares / count + eps)
    weight = tl.load(w_ptr + columns, mask=inside, other=0.0)
    bias = tl.load(b_ptr + columns, mask=inside, other=0.0)
    first = tl.zeros([BM, BC], dtype=tl.float32)
    second = tl.zeros([BM, BC], dtype=tl.float32)
    blocks = tl.cdiv(M, BM)
    for done in range(part, blocks, parts):
        row = (blocks - 1 - done) * BM + tl.arange(0, BM)
        mask = (row < M)[:, None] & inside[None, :]
        offset = row.to(tl.int64)[:, None] * C + columns[None, :]
        xhat = (tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
        g = tl.load(g_ptr + _of_gradient(row, columns, offset, G, APART), mask=mask, other=0.0).to(tl.float32)
        dz = g * _slope(xhat * weight[None, :] + bias[None, :], ACT)
        first += dz
        second += dz * xhat
    left = _leave(parts_ptr, tickets_ptr, part, columns, inside, C, tl.sum(first, axis=0), tl.sum(second, axis=0))
    if left == parts - 1:
        total, total_xhat = _add_up(parts_ptr, tickets_ptr, columns, inside, parts, C, BP)
        tl.store(out_ptr + columns, total, mask=inside)
        tl.store(out_ptr + C + columns, total_xhat, mask=inside)
        if MEET:
            own_ptr = place_ptr + rank * LINES * LINE
            _tell(own_ptr, columns, inside, total, turn)
            _tell(own_ptr + LINE, columns, inside, total_xhat, turn)
            of_this, of_this_xhat = total, total_xhat
            total = tl.zeros([BC], dtype=tl.float32)
            total_xhat = tl.zeros([BC], dtype=tl.float32)
            for other in range(RANKS):  # in the same order on every rank, which then all have the same sums
                if other == rank:
                    total += of_this
                    total_xhat += of_this_xhat
                else:
                    more, more_xhat, _ = _heard(place_ptr + other * LINES * LINE, columns, inside, turn, 2)
                    total += more
                    total_xhat += more_xhat
        if RANKS > 1:
            tl.store(out_ptr + 2 * C + columns, total, mask=inside)
            tl.store(out_ptr + 3 * C + columns, total_xhat, mask=inside)


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def gradient_kernel(
    x_ptr: tl.tensor, g_ptr: tl.tensor, dx_ptr: tl.tensor, sums_ptr: tl.tensor, table_ptr: tl.tensor, w_ptr: tl.tensor, b_ptr: tl.tensor,
    M: tl.tensor, C: tl.tensor, G: tl.tensor, eps: tl.tensor,
    BM: tl.constexpr, BC: tl.constexpr, RANKS: tl.constexpr, ACT: tl.constexpr, APART: tl.constexpr,
) -> None:  # fmt: skip
    """dx = w * rstd * (dz - m0 - xhat * m1), with m0 and m1 the means of dz and dz * xhat over all ranks (Ioffe and Szegedy, arXiv 1502.03167).

    G, APART: as of `gradient_sums_kernel`.
    """
    block, columns, inside = _place(C, BC)
    mean, squares, count = _merged(table_ptr, columns, inside, C, RANKS)
    rstd = 1.0 / tl.sqrt(squares / count + eps)
    weight = tl.load(w_ptr + columns, mask=inside, other=0.0)
    bias = tl.load(b_ptr + columns, mask=inside, other=0.0)
    if RANKS > 1:
        sums_ptr += 2 * C
    m0 = tl.load(sums_ptr + columns, mask=inside, other=0.0) / count
    m1 = tl.load(sums_ptr + C + columns, mask=inside, other=0.0) / count
    row = block * BM + tl.arange(0, BM)
    mask = (row < M)[:, None] & inside[None, :]
    offset = row.to(tl.int64)[:, None] * C + columns[None, :]
    xhat = (tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    g = tl.load(g_ptr + _of_gradient(row, columns, offset, G, APART), mask=mask, other=0.0).to(tl.float32)
    dz = g * _slope(xhat * weight[None, :] + bias[None, :], ACT)
    dx = (weight * rstd)[None, :] * (dz - m0[None, :] - xhat * m1[None, :])
    tl.store(dx_ptr + offset, dx.to(dx_ptr.dtype.element_ty), mask=mask)
