"""Carries out a batch of plans on the device: every output pixel looks up its source pixel, once per slot. No host sync.

In plain torch here; where our kernel runs, by that (`paint`).

B pictures, S slots of a picture (4, or 8 with mixup: slots of layer 0 first), T source pictures ("tiles") of the batch, H W the network
input. Pixel i has its centre at i + 0.5 everywhere (grid_sample's align_corners=False), the convention in which boxes are moved too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from libreyolo.data.augment.hsv import jitter_hsv
from libreyolo.data.augment.paint import can_paint, paint
from libreyolo.data.augment.plan import IDENTITY_HSV, SLOTS_PER_LAYER, Plan
from libreyolo.interfaces.transfer import Transferable

PAD = 114.0 / 255.0
# Pictures of one pass over the slots on an accelerator: bounds the working memory (about 80 bytes per output pixel) to 1 GB at 640 px.
PIXELS_PER_PASS = 32 * 640 * 640


class SlotNumbers(NamedTuple):
    """What says where a slot's tile is seen, for b pictures: each [b, 2, 1, 1], along x and y. An unused slot covers nothing.

    The pixel whose centre is (column, row) shows the tile's place corner + by_column * column + by_row * row, in tile pixels, divided (where the
    view is projective) by far_corner + far_by_column * column + far_by_row * row.
    scale: output pixels per tile pixel. offset: minus the middle of what is shown, in output pixels. reach: how far from it a pixel's centre may
    be before nothing of the pixel is covered. most: how much of a pixel the tile can cover. last: the centre of the tile's last pixel.
    """

    by_column: Tensor
    by_row: Tensor
    corner: Tensor
    scale: Tensor
    offset: Tensor
    reach: Tensor
    most: Tensor
    last: Tensor
    far_by_column: Tensor
    far_by_row: Tensor
    far_corner: Tensor


@dataclass
class PlanBatch(Transferable):
    """The plans of a batch as arrays; what steers the loop over slots stays on the host.

    tile: int64 [B, S] on the CPU, place in `tiles`; -1 for an unused slot.
    window: int64 [B, S, 4] on the CPU, (x0, y0, x1, y1) output pixels that hold all that is visible of the slot.
    jittered: bool [B] on the CPU, whose colours change.
    tile_hw: int64 [T, 2] on the CPU, each tile's own size within the buffer.
    numbers: float32 [S, 11, B, 2, 1, 1], the fields of `SlotNumbers`: one tensor, since each costs a copy to the device.
    colours: float32 [B, 4], hue shift, saturation and value factor, and the weight of layer 1.
    source: int64 [S, B], `tile` with 0 for unused slots, for gathering on the device.
    projective: whether any matrix needs the division by its third row.
    """

    tile: Tensor
    window: Tensor
    jittered: Tensor
    tile_hw: Tensor
    numbers: Tensor
    colours: Tensor
    source: Tensor
    projective: bool

    HOST_ONLY = frozenset({"tile", "window", "jittered", "tile_hw"})

    def slot(self, slot: int, rows: slice) -> SlotNumbers:
        """Return the numbers of one slot of the pictures `rows`."""
        return SlotNumbers(*self.numbers[slot, :, rows].unbind())


def stack_plans(plans: Sequence[Plan], tile_of: dict[int, int], tile_hw: np.ndarray) -> PlanBatch:
    """Return the plans as arrays. `tile_of`: dataset index to place in the tile buffer; `tile_hw`: int64 [T, 2] decoded sizes."""
    num_slots = SLOTS_PER_LAYER * (2 if any(p.blend > 0 for p in plans) else 1)
    shape = (len(plans), num_slots)
    tile = np.full(shape, -1, np.int64)
    window = np.zeros((*shape, 4), np.int64)
    matrix = np.tile(np.eye(3), (*shape, 1, 1))
    shown = np.tile([1e9, 1e9, -1e9, -1e9], (*shape, 1))  # inside out: an unused slot covers nothing
    edge_scale = np.ones((*shape, 2))
    size = np.ones((*shape, 2))
    for row, plan in enumerate(plans):
        free = [0, SLOTS_PER_LAYER]
        for slot in plan.slots:
            at = (row, free[slot.layer])
            free[slot.layer] += 1
            tile[at] = tile_of[slot.picture]
            height, width = tile_hw[tile[at]]
            window[at] = slot.window
            matrix[at] = np.diag([width, height, 1.0]) @ np.linalg.inv(slot.to_output)
            shown[at] = np.asarray(slot.shown) * [width, height, width, height]
            edge_scale[at] = np.asarray(slot.edge_scale) / [width, height]
            size[at] = (width, height)
    return PlanBatch(
        tile=torch.from_numpy(tile),
        window=torch.from_numpy(window),
        jittered=torch.tensor([p.hsv is not None for p in plans]),
        tile_hw=torch.from_numpy(np.asarray(tile_hw, np.int64).reshape(-1, 2)),
        numbers=torch.from_numpy(_numbers(matrix, shown, edge_scale, size)),
        colours=torch.tensor([(*(p.hsv or IDENTITY_HSV), p.blend) for p in plans], dtype=torch.float32),
        source=torch.from_numpy(np.maximum(tile, 0).T.copy()),
        projective=bool(np.any(matrix[..., 2, :2])),
    )


def _numbers(matrix: np.ndarray, shown: np.ndarray, scale: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return `PlanBatch.numbers` from [B, S, ...] of: output pixels to tile pixels, what is shown in tile pixels, edge scales and tile sizes."""
    low, high = shown[..., :2] * scale, shown[..., 2:] * scale
    fields = {
        "by_column": matrix[..., :2, 0],
        "by_row": matrix[..., :2, 1],
        "corner": matrix[..., :2, 2],
        "scale": scale,
        "offset": -(low + high) / 2,
        "reach": (high - low) / 2 + 0.5,
        "most": np.minimum(high - low, 1.0),
        "last": size - 0.5,
        "far_by_column": matrix[..., [2, 2], 0],
        "far_by_row": matrix[..., [2, 2], 1],
        "far_corner": matrix[..., [2, 2], 2],
    }
    stacked = np.stack([fields[name] for name in SlotNumbers._fields])
    return stacked.transpose(2, 0, 1, 3)[..., None, None].astype(np.float32)


def one_by_one(device: torch.device) -> bool:
    """Whether pictures are made one at a time on this device (see `compose`)."""
    return device.type == "cpu"


def compose(tiles: Tensor, plans: PlanBatch, hw: tuple[int, int]) -> Tensor:
    """Return the output pictures, float32 [B, 3, H, W], RGB in [0, 1]; grey (114/255) where no tile is.

    tiles: uint8 [T, h, w, 3] RGB, each in the top left corner of the buffer, on the device where the work is done, as `plans`.
    A tile's edges are soft over one output pixel: each output pixel mixes tile and grey by the share that is covered. So tiles that share
    an edge meet without a seam, and a result never hinges on the rounding of one comparison.
    On the CPU, pictures are made one by one, each slot only within its window: the result for a picture is then the same to the bit
    whatever else is in the batch. On an accelerator, many are made at once; results agree with the CPU's to rounding.
    """
    if can_paint(tiles.device):
        return paint(tiles, plans, hw, PAD, SLOTS_PER_LAYER)
    num_pictures = len(plans.jittered)
    images = torch.empty((num_pictures, 3, *hw), dtype=torch.float32, device=tiles.device)
    blended, jittered = plans.tile.numpy()[:, SLOTS_PER_LAYER:] >= 0, plans.jittered.numpy()
    centres = pixel_centres(hw, tiles.device)
    step = 1 if one_by_one(tiles.device) else max(1, PIXELS_PER_PASS // (hw[0] * hw[1]))
    for first in range(0, num_pictures, step):
        rows = slice(first, min(first + step, num_pictures))
        picture = _layer(tiles, plans, rows, range(SLOTS_PER_LAYER), centres)
        if blended[rows].any():
            other = _layer(tiles, plans, rows, range(SLOTS_PER_LAYER, 2 * SLOTS_PER_LAYER), centres)
            # Where no mixup was drawn the weight is 0 and the picture stays as it is.
            picture = torch.lerp(picture, other, plans.colours[rows, 3:, None, None])
        if jittered[rows].any():
            gains = plans.colours[rows, :3]
            changed = jitter_hsv(picture, gains)
            if jittered[rows].all():
                picture = changed
            else:
                # The identity gains of the others would still round.
                unchanged = (gains[:, 0] == 0) & (gains[:, 1:] == 1).all(dim=1)
                picture = torch.where(unchanged[:, None, None, None], picture, changed)
        images[rows] = picture
    return images


def pixel_centres(hw: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the columns [W] and the rows [H, 1] of the output's pixel centres."""
    columns, rows = (torch.arange(0.5, side, device=device) for side in (hw[1], hw[0]))
    return columns, rows[:, None]


def _layer(tiles: Tensor, plans: PlanBatch, rows: slice, slots: range, centres: tuple[Tensor, Tensor]) -> Tensor:
    """Return one layer of the pictures `rows`, [b, 3, H, W]: the sum of its slots by coverage, grey where nothing covers."""
    columns, lines = centres
    count, hw = rows.stop - rows.start, (len(lines), len(columns))
    colour = torch.zeros((count, 3, *hw), device=tiles.device)
    covered = torch.zeros((count, 1, *hw), device=tiles.device)
    window, used = plans.window.numpy()[rows], plans.tile.numpy()[rows] >= 0
    for slot in slots:
        windows = window[used[:, slot], slot]
        if len(windows) == 0:
            continue
        x0, y0 = windows[:, :2].min(axis=0).tolist()
        x1, y1 = windows[:, 2:].max(axis=0).tolist()
        numbers = plans.slot(slot, rows)
        xy, coverage = coordinates(numbers, (columns[x0:x1], lines[y0:y1]), projective=plans.projective)
        seen = _sample(tiles, plans, rows, slot, xy, numbers.last)
        colour[:, :, y0:y1, x0:x1].addcmul_(seen, coverage, value=1 / 255)
        covered[:, :, y0:y1, x0:x1].add_(coverage)
    # Neighbours under shear or perspective may overlap by a fraction of a pixel at their common edge.
    return colour.div_(covered.clamp(min=1.0)).add_((1.0 - covered).clamp_(min=0.0), alpha=PAD)


def coordinates(slot: SlotNumbers, centres: tuple[Tensor, Tensor], *, projective: bool) -> tuple[Tensor, Tensor]:
    """Return what each pixel of some output columns and rows shows: places in the tile, x and y [b, 2, h, w] in tile pixels, and the share of it
    that the tile covers, [b, 1, h, w]."""
    columns, rows = centres
    xy = torch.addcmul(torch.addcmul(slot.corner, slot.by_row, rows), slot.by_column, columns)
    if projective:
        far = torch.addcmul(torch.addcmul(slot.far_corner, slot.far_by_row, rows), slot.far_by_column, columns)
        xy /= far.clamp(min=1e-6)
    # How much of [-0.5, 0.5] around the pixel's centre lies within what is shown, along each axis.
    from_middle = torch.addcmul(slot.offset, xy, slot.scale).abs_()
    along_x, along_y = torch.minimum(slot.reach - from_middle, slot.most).clamp_(min=0.0).split(1, dim=1)
    coverage = along_x * along_y
    return xy, coverage.masked_fill_(far[:, :1] <= 1e-6, 0.0) if projective else coverage


def _sample(tiles: Tensor, plans: PlanBatch, rows: slice, slot: int, xy: Tensor, last: Tensor) -> Tensor:
    """Return the tiles' bilinear colours at tile coordinates `xy`, which are used up, float32 [b, 3, h, w] in 0..255; edge pixels go on beyond."""
    if one_by_one(tiles.device):
        # Cutting the one picture's tile out of the buffer makes the arithmetic independent of the other tiles' sizes.
        tile = int(plans.tile[rows.start, slot])
        height, width = plans.tile_hw[tile].tolist()
        source = tiles[tile : tile + 1, :height, :width]
    else:
        source = tiles[plans.source[slot, rows]]
    height, width = source.shape[1:3]
    # Beyond the centres of the outermost pixels their colour goes on; without the clamp the buffer's padding would bleed in.
    x, y = torch.minimum(xy.clamp_(min=0.5), last, out=xy).unbind(dim=1)
    x.mul_(2.0 / width)
    y.mul_(2.0 / height)
    grid = xy.sub_(1.0).permute(0, 2, 3, 1)
    return F.grid_sample(source.permute(0, 3, 1, 2).float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
