"""What a loader yields and a task reads. B batch, N rows for boxes, at least the most of any picture, H W network input."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from libreyolo.interfaces.transfer import Transferable


@dataclass
class Batch(Transferable):
    """The part that every task shares.

    images: [B, 3, H, W] float32, RGB in [0, 1]; the family's own input convention is applied by the task.
    weight: [B] float32, 1 for a real picture and 0 for a padded repeat of a short last batch (it must not count in any sum).
    index: [B] int64 on the CPU, the pictures' places in the dataset.
    epoch: zero-based epoch; phases of a recipe are functions of it.
    key: [B, 2] int64 on the CPU: (epoch, place in the epoch's global list), the key of every random draw for that picture.
    """

    images: Tensor
    weight: Tensor
    index: Tensor
    epoch: int
    key: Tensor

    HOST_ONLY = frozenset({"index", "key"})


@dataclass
class DetectionBatch(Batch):
    """Pictures with boxes.

    boxes: [B, N, 4] float32 xyxy in pixels of the network input; rows that are not valid are 0.
    labels: [B, N] int64 class ids; 0 where not valid.
    valid: [B, N] bool.
    num_boxes: [B] int64 on the CPU: how many rows of each picture are valid (valid rows come first). N is at least max(num_boxes) and at least 1.
    original_hw: [B, 2] int64 on the CPU, height and width of the picture as stored (after EXIF rotation).
    to_input: [B, 4] float32 on the CPU, (sx, sy, tx, ty): x_input = sx * x_original + tx. Only meaningful for evaluation batches.
    """

    boxes: Tensor
    labels: Tensor
    valid: Tensor
    num_boxes: Tensor
    original_hw: Tensor
    to_input: Tensor

    HOST_ONLY = Batch.HOST_ONLY | {"num_boxes", "original_hw", "to_input"}


@dataclass
class RestoreBatch(Batch):
    """Pictures with what they should be restored to. h w the part of an input that is shown to the network, at the top left; beyond it are zeros.

    targets: [B, 3, H, W] float32, RGB in [0, 1], pixel by pixel beside `images`; [B, 3, 0, 0] for pictures without one (prediction).
    input_hw: [B, 2] int64 on the CPU, h and w of each picture: a multiple of the network's stride.
    picture_hw: [B, 2] int64 on the CPU, the part of h and w that is the picture itself; the rest repeats it mirrored, and counts nowhere.
    """

    targets: Tensor
    input_hw: Tensor
    picture_hw: Tensor

    HOST_ONLY = Batch.HOST_ONLY | {"input_hw", "picture_hw"}


@dataclass
class Restored:
    """One restored picture at its own size. pixels: [3, H, W] float32 on the CPU, RGB in [0, 1]."""

    pixels: Tensor


@dataclass
class Detections:
    """Predicted boxes of one picture, best first. All tensors on the CPU.

    boxes: [D, 4] float32 xyxy in pixels of the original picture, clipped to it.
    scores: [D] float32 in [0, 1].
    labels: [D] int64 class ids.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor


@dataclass
class Points:
    """Predicted points of one picture, best first. All tensors on the CPU. R radii within which only the best point stays.

    xy: [D, 2] float32, pixels of the original picture: the centre of the cell.
    scores: [D] float32 in [0, 1].
    labels: [D] int64 class ids.
    cells: [D, 2] int64, column and row of the grid.
    kept: [D, R] bool, whether the point stays at each radius; every row stays at one of them.
    """

    xy: Tensor
    scores: Tensor
    labels: Tensor
    cells: Tensor
    kept: Tensor


@dataclass
class ClassifyBatch(Batch):
    """Pictures with one class each, or two of which each has a share.

    labels: [B, 2] int64 class ids: the picture's own, and that of what was mixed into it (its own again where nothing was).
    shares: [B, 2] float32, how much of the label each of the two is; they add up to 1.
    """

    labels: Tensor
    shares: Tensor


@dataclass
class ClassScores:
    """What a classifier says of one picture. probs: [C] float32 on the CPU, adding up to 1."""

    probs: Tensor


@dataclass
class SemanticBatch(Batch):
    """Pictures with masks of class ids. h w the largest original picture.

    masks: [B, H, W] uint8 class ids of the network input; 255 where a pixel is ignored.
    original_hw: [B, 2] int64 on the CPU, height and width of the picture as stored (after EXIF rotation).
    content: [B, 4] int64 on the CPU, (y0, x0, y1, x1): the part of the input that shows the picture. Only meaningful for evaluation batches.
    truth: [B, h, w] uint8 on the CPU, the masks at their original sizes, each in the top left corner, 255 beside it; [B, 0, 0] in training and
        for pictures without a mask.
    """

    masks: Tensor
    original_hw: Tensor
    content: Tensor
    truth: Tensor

    HOST_ONLY = Batch.HOST_ONLY | {"original_hw", "content", "truth"}
