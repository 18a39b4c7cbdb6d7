"""Carries out a batch of plans on the device: every output pixel looks up its source pixel, once per slot. Plain torch, no host sync.

B pictures, S slots of a picture (4, or 8 with mixup: slots of layer 0 first), T source pictures ("tiles") of the batch, H W the network
input. Pixel i has its centre at i + 0.5 everywhere (grid_sample's align_corners=False), the convention in which boxes are moved too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from libreyolo.data.augment.hsv import jitter_hsv
from libreyolo.data.augment.plan import IDENTITY_HSV, SLOTS_PER_LAYER, Plan
from libreyolo.interfaces.transfer import Transferable

PAD = 114.0 / 255.0
# Pictures of one pass over the slots on an accelerator: bounds the working memory (about 64 bytes per output pixel) to 0.5 GB at 640 px.
PIXELS_PER_PASS = 16 * 640 * 640


@dataclass
class PlanBatch(Transferable):
    """The plans of a batch as arrays; what steers the loop over slots stays on the host.

    tile: int64 [B, S] on the CPU, place in `tiles`; -1 for an unused slot.
    window: int64 [B, S, 4] on the CPU, (x0, y0, x1, y1) output pixels that hold all that is visible of the slot.
    jittered: bool [B] on the CPU, whose colours change.
    tile_hw: int64 [T, 2] on the CPU, each tile's own size within the buffer.
    matrix: float32 [B, S, 3, 3], output pixels to tile pixels.
    shown: float32 [B, S, 4], (x0, y0, x1, y1) the visible part in tile pixels.
    edge_scale: float32 [B, S, 2], output pixels per tile pixel along x and y.
    size: float32 [B, S, 2], the tile's width and height.
    blend: float32 [B], weight of layer 1.
    hsv: float32 [B, 3].
    source: int64 [B, S], `tile` with 0 for unused slots, for gathering on the device.
    projective: whether any matrix needs the division by its third row.
    """

    tile: Tensor
    window: Tensor
    jittered: Tensor
    tile_hw: Tensor
    matrix: Tensor
    shown: Tensor
    edge_scale: Tensor
    size: Tensor
    blend: Tensor
    hsv: Tensor
    source: Tensor
    projective: bool

    HOST_ONLY = frozenset({"tile", "window", "jittered", "tile_hw"})


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
        matrix=torch.from_numpy(matrix.astype(np.float32)),
        shown=torch.from_numpy(shown.astype(np.float32)),
        edge_scale=torch.from_numpy(edge_scale.astype(np.float32)),
        size=torch.from_numpy(size.astype(np.float32)),
        blend=torch.tensor([p.blend for p in plans], dtype=torch.float32),
        hsv=torch.tensor([p.hsv or IDENTITY_HSV for p in plans], dtype=torch.float32),
        source=torch.from_numpy(np.maximum(tile, 0)),
        projective=bool(np.any(matrix[..., 2, :2])),
    )


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
    num_pictures = plans.tile.shape[0]
    images = torch.empty((num_pictures, 3, *hw), dtype=torch.float32, device=tiles.device)
    step = 1 if one_by_one(tiles.device) else max(1, PIXELS_PER_PASS // (hw[0] * hw[1]))
    for first in range(0, num_pictures, step):
        rows = slice(first, min(first + step, num_pictures))
        picture = _layer(tiles, plans, rows, range(SLOTS_PER_LAYER), hw)
        if plans.tile.shape[1] > SLOTS_PER_LAYER and bool((plans.tile[rows, SLOTS_PER_LAYER:] >= 0).any()):
            blended = _layer(tiles, plans, rows, range(SLOTS_PER_LAYER, 2 * SLOTS_PER_LAYER), hw)
            # Where no mixup was drawn the weight is 0 and the picture stays as it is.
            picture = torch.lerp(picture, blended, plans.blend[rows, None, None, None])
        if bool(plans.jittered[rows].any()):
            jittered = jitter_hsv(picture, plans.hsv[rows])
            if bool(plans.jittered[rows].all()):
                picture = jittered
            else:
                # The identity gains of the others would still round.
                unchanged = (plans.hsv[rows, 0] == 0) & (plans.hsv[rows, 1:] == 1).all(dim=1)
                picture = torch.where(unchanged[:, None, None, None], picture, jittered)
        images[rows] = picture
    return images


def _layer(tiles: Tensor, plans: PlanBatch, rows: slice, slots: range, hw: tuple[int, int]) -> Tensor:
    """Return one layer of the pictures `rows`, [b, 3, H, W]: the sum of its slots by coverage, grey where nothing covers."""
    count = rows.stop - rows.start
    colour = torch.zeros((count, 3, *hw), device=tiles.device)
    covered = torch.zeros((count, 1, *hw), device=tiles.device)
    for slot in slots:
        used = plans.tile[rows, slot] >= 0
        if not bool(used.any()):
            continue
        windows = plans.window[rows, slot][used]
        x0, y0 = windows[:, :2].amin(dim=0).tolist()
        x1, y1 = windows[:, 2:].amax(dim=0).tolist()
        x, y, coverage = coordinates(plans, rows, slot, (x0, y0, x1, y1))
        seen = _sample(tiles, plans, rows, slot, x, y)
        colour[:, :, y0:y1, x0:x1] += seen * coverage[:, None]
        covered[:, :, y0:y1, x0:x1] += coverage[:, None]
    # Neighbours under shear or perspective may overlap by a fraction of a pixel at their common edge.
    return colour / (255.0 * covered.clamp(min=1.0)) + (1.0 - covered).clamp(min=0.0) * PAD


def coordinates(plans: PlanBatch, rows: slice, slot: int, window: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return what each output pixel of the window shows: tile coordinates x and y, and the share of it that the tile covers, [b, h, w]."""
    x0, y0, x1, y1 = window
    matrix = plans.matrix[rows, slot, :, :, None, None]  # [b, 3, 3, 1, 1]
    out_x = torch.arange(x0, x1, device=matrix.device, dtype=torch.float32) + 0.5
    out_y = (torch.arange(y0, y1, device=matrix.device, dtype=torch.float32) + 0.5)[:, None]
    x = matrix[:, 0, 0] * out_x + (matrix[:, 0, 1] * out_y + matrix[:, 0, 2])
    y = matrix[:, 1, 0] * out_x + (matrix[:, 1, 1] * out_y + matrix[:, 1, 2])
    if plans.projective:
        divisor = matrix[:, 2, 0] * out_x + (matrix[:, 2, 1] * out_y + matrix[:, 2, 2])
        behind = divisor <= 1e-6
        divisor = divisor.clamp(min=1e-6)
        x, y = x / divisor, y / divisor
    shown = plans.shown[rows, slot, :, None, None]
    scale = plans.edge_scale[rows, slot, :, None, None]
    coverage = _covered(x, shown[:, 0], shown[:, 2], scale[:, 0]) * _covered(y, shown[:, 1], shown[:, 3], scale[:, 1])
    if plans.projective:
        coverage = coverage.masked_fill(behind, 0.0)
    return x, y, coverage


def _covered(at: Tensor, low: Tensor, high: Tensor, scale: Tensor) -> Tensor:
    """Return the share of an output pixel centred at `at` that [low, high] covers along one axis; `scale`: output pixels per tile pixel."""
    from_low = ((at - low) * scale + 0.5).clamp(0.0, 1.0)
    from_high = ((high - at) * scale + 0.5).clamp(0.0, 1.0)
    return (from_low + from_high - 1.0).clamp(min=0.0)


def _sample(tiles: Tensor, plans: PlanBatch, rows: slice, slot: int, x: Tensor, y: Tensor) -> Tensor:
    """Return the tiles' bilinear colours at tile coordinates x, y, float32 [b, 3, h, w] in 0..255; edge pixels go on beyond the tile."""
    if one_by_one(tiles.device):
        # Cutting the one picture's tile out of the buffer makes the arithmetic independent of the other tiles' sizes.
        tile = int(plans.tile[rows.start, slot])
        height, width = plans.tile_hw[tile].tolist()
        source = tiles[tile : tile + 1, :height, :width]
    else:
        source = tiles[plans.source[rows, slot]]
    height, width = source.shape[1:3]
    size = plans.size[rows, slot, :, None, None]
    # Beyond the centres of the outermost pixels their colour goes on; without the clamp the buffer's padding would bleed in.
    x = torch.minimum(x.clamp(min=0.5), size[:, 0] - 0.5)
    y = torch.minimum(y.clamp(min=0.5), size[:, 1] - 0.5)
    grid = torch.stack([x * (2.0 / width) - 1.0, y * (2.0 / height) - 1.0], dim=-1)
    return F.grid_sample(source.permute(0, 3, 1, 2).float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
