"""Triton kernel that carries out plans: every output pixel is made where it is written, and nothing between tiles and pictures lies in memory.

The arithmetic is that of `compose` and `jitter_hsv`, in float32; results agree with theirs to rounding.
"""

from __future__ import annotations

import triton
import triton.language as tl

TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal float32, as hsv.TINY
FIELDS = tl.constexpr(11)  # of SlotNumbers, in its order; the places below are theirs
BY_COLUMN, BY_ROW, CORNER = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
SCALE, OFFSET, REACH, MOST, LAST = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5), tl.constexpr(6), tl.constexpr(7)
FAR_BY_COLUMN, FAR_BY_ROW, FAR_CORNER = tl.constexpr(8), tl.constexpr(9), tl.constexpr(10)


@triton.jit
def _along(
    first_ptr: tl.tensor, step: tl.tensor, axis: tl.constexpr, column: tl.tensor, row: tl.tensor, PROJECTIVE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return, along one axis, the place in the tile in pixels from the centre of its first, and how much of each pixel is covered.

    first_ptr: the slot's first number of this picture; its fields are `step` numbers apart.
    """
    base = first_ptr + axis
    place = tl.load(base + CORNER * step) + tl.load(base + BY_ROW * step) * row + tl.load(base + BY_COLUMN * step) * column
    if PROJECTIVE:
        far = tl.load(base + FAR_CORNER * step) + tl.load(base + FAR_BY_ROW * step) * row + tl.load(base + FAR_BY_COLUMN * step) * column
        place = place / tl.maximum(far, 1e-6)
    from_middle = tl.abs(tl.load(base + OFFSET * step) + place * tl.load(base + SCALE * step))
    covered = tl.maximum(tl.minimum(tl.load(base + REACH * step) - from_middle, tl.load(base + MOST * step)), 0.0)
    if PROJECTIVE:
        covered = tl.where(far <= 1e-6, 0.0, covered)
    # Beyond the centres of the outermost pixels their colour goes on.
    return tl.minimum(tl.maximum(place, 0.5), tl.load(base + LAST * step)) - 0.5, covered


@triton.jit
def _channel(top_left: tl.tensor, right: tl.tensor, down: tl.tensor, fx: tl.tensor, fy: tl.tensor, seen: tl.tensor) -> tl.tensor:
    """Return one channel between four neighbouring pixels, 0..255. right, down: how far in bytes the next column and row are."""
    a = tl.load(top_left, mask=seen, other=0).to(tl.float32)
    b = tl.load(top_left + right, mask=seen, other=0).to(tl.float32)
    c = tl.load(top_left + down, mask=seen, other=0).to(tl.float32)
    d = tl.load(top_left + down + right, mask=seen, other=0).to(tl.float32)
    top = a + (b - a) * fx
    return top + (c + (d - c) * fx - top) * fy


@triton.jit
def _layer(
    tiles_ptr: tl.tensor, source_ptr: tl.tensor, numbers_ptr: tl.tensor, picture: tl.tensor, pictures: tl.tensor,
    height: tl.tensor, width: tl.tensor, column: tl.tensor, row: tl.tensor, inside: tl.tensor, pad: tl.tensor,
    FIRST: tl.constexpr, SLOTS: tl.constexpr, PROJECTIVE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Return red, green and blue of one layer in [0, 1]: the sum of its slots by coverage, `pad` where nothing covers."""
    nothing = column * 0.0 + row * 0.0
    red, green, blue, covered = nothing, nothing, nothing, nothing
    for slot in tl.static_range(FIRST, FIRST + SLOTS):
        first_ptr = numbers_ptr + (slot * FIELDS * pictures + picture) * 2
        x, covered_x = _along(first_ptr, pictures * 2, 0, column, row, PROJECTIVE)
        y, covered_y = _along(first_ptr, pictures * 2, 1, column, row, PROJECTIVE)
        coverage = tl.where(inside, covered_x * covered_y, 0.0)
        if tl.max(tl.max(coverage, 1), 0) > 0.0:
            tile = tl.load(source_ptr + slot * pictures + picture)  # int64: a buffer of tiles may exceed 2^31 bytes
            left, upper = x.to(tl.int32), y.to(tl.int32)  # neither is negative
            fx, fy = x - left.to(tl.float32), y - upper.to(tl.float32)
            at = tiles_ptr + tile * height * width * 3 + (upper * width + left) * 3
            # The last pixel has no neighbour; it is not asked for one, with a weight of 0.
            right = tl.where(left + 1 < width, 3, 0)
            down = tl.where(upper + 1 < height, width * 3, 0)
            seen = coverage > 0.0
            share = coverage * (1.0 / 255.0)
            red += _channel(at, right, down, fx, fy, seen) * share
            green += _channel(at + 1, right, down, fx, fy, seen) * share
            blue += _channel(at + 2, right, down, fx, fy, seen) * share
            covered += coverage
    # Neighbours under shear or perspective may overlap by a fraction of a pixel at their common edge.
    whole, grey = tl.maximum(covered, 1.0), tl.maximum(1.0 - covered, 0.0) * pad
    return red / whole + grey, green / whole + grey, blue / whole + grey


@triton.jit
def _hue_channel(sixths: tl.tensor, value: tl.tensor, product: tl.tensor, N: tl.constexpr) -> tl.tensor:
    """Return the channel N of 5, 3, 1 (red, green, blue), as `jitter_hsv` says."""
    k = sixths + N
    k = k - tl.floor(k / 6.0) * 6.0
    return value - product * tl.minimum(tl.maximum(tl.minimum(k, 4.0 - k), 0.0), 1.0)


@triton.jit(do_not_specialize=["pictures", "height", "width", "H", "W"])
def paint_kernel(
    tiles_ptr: tl.tensor, source_ptr: tl.tensor, numbers_ptr: tl.tensor, colours_ptr: tl.tensor, images_ptr: tl.tensor,
    pictures: tl.tensor, height: tl.tensor, width: tl.tensor, H: tl.tensor, W: tl.tensor, pad: tl.tensor,
    SLOTS: tl.constexpr, MIXED: tl.constexpr, PROJECTIVE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """images: float32 [pictures, 3, H, W] of tiles uint8 [T, height, width, 3]; the others as in `PlanBatch`. pad: the grey between tiles.

    SLOTS: of a layer. MIXED: whether there is a second layer. A program makes ROWS x COLUMNS pixels.
    """
    down, across = tl.cdiv(H, ROWS), tl.cdiv(W, COLUMNS)
    picture = tl.program_id(0) // (down * across)
    block = tl.program_id(0) % (down * across)
    line = (block // across) * ROWS + tl.arange(0, ROWS)[:, None]
    place = (block % across) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (line < H) & (place < W)
    row, column = line.to(tl.float32) + 0.5, place.to(tl.float32) + 0.5
    red, green, blue = _layer(
        tiles_ptr, source_ptr, numbers_ptr, picture, pictures, height, width, column, row, inside, pad, 0, SLOTS, PROJECTIVE
    )  # fmt: skip
    colours = colours_ptr + picture * 4
    if MIXED:
        weight = tl.load(colours + 3)
        if weight != 0.0:
            red_2, green_2, blue_2 = _layer(
                tiles_ptr, source_ptr, numbers_ptr, picture, pictures, height, width, column, row, inside, pad, SLOTS, SLOTS, PROJECTIVE
            )  # fmt: skip
            red, green, blue = red + (red_2 - red) * weight, green + (green_2 - green) * weight, blue + (blue_2 - blue) * weight
    shift, more_saturation, more_value = tl.load(colours), tl.load(colours + 1), tl.load(colours + 2)
    if (shift != 0.0) | (more_saturation != 1.0) | (more_value != 1.0):  # the identity would still round
        value = tl.maximum(tl.maximum(red, green), blue)
        chroma = value - tl.minimum(tl.minimum(red, green), blue)
        safe = tl.maximum(chroma, TINY)
        below_red = tl.where(green == value, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe)
        sixths = tl.where(red == value, (green - blue) / safe, below_red) + shift * 6.0
        saturation = tl.minimum(tl.maximum(chroma / tl.maximum(value, TINY) * more_saturation, 0.0), 1.0)
        value = tl.minimum(tl.maximum(value * more_value, 0.0), 1.0)
        product = value * saturation
        red = _hue_channel(sixths, value, product, 5)
        green = _hue_channel(sixths, value, product, 3)
        blue = _hue_channel(sixths, value, product, 1)
    size = H * W
    to = images_ptr + picture.to(tl.int64) * 3 * size + line * W + place
    tl.store(to, red, mask=inside)
    tl.store(to + size, green, mask=inside)
    tl.store(to + 2 * size, blue, mask=inside)
