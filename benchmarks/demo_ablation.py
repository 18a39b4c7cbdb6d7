"""A demo with one part of its loss taken away, to show that the embedded set notices.

    python benchmarks/demo_ablation.py random_assigner|no_dfl|shuffled_points|shuffled_labels|shuffled_masks [key=value ...]
    python benchmarks/demo_ablation.py most_likely_bin path/to/best.pt

random_assigner: every object takes ten anchors drawn at random from the whole picture, each at full weight. no_dfl: the distribution is gone; a
side's distance is one number (the softplus of the mean of its 16 logits), which CIoU alone trains. shuffled_points: fomo (experiment=demo-point)
is trained on the cells of the next picture of the batch. shuffled_labels: the demo of classes, where every picture is trained with the label of
another one of its batch. shuffled_masks: the demo of masks, likewise. Further arguments go to train.py as they are.
most_likely_bin: validate a trained demo twice, with the mean of the distributions and with their most likely bin, to see what the bins mean.
Not an option of the product: functions are replaced in this process, and loader workers only read pictures.
"""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from libreyolo import LibreYOLO  # noqa: E402
from libreyolo.models.fomo import loss as fomo_loss  # noqa: E402
from libreyolo.models.unet import loss as unet_loss  # noqa: E402
from libreyolo.models.yolo9 import decode, loss  # noqa: E402
from libreyolo.nn import classification  # noqa: E402
from libreyolo.ops.assign import Assignment  # noqa: E402
from libreyolo.ops.cells import target_grid  # noqa: E402
from libreyolo.ops.pixels import pixel_cross_entropy  # noqa: E402

TOPK = 10
WITH_ITS_OWN = classification.cross_entropy


@torch.no_grad()
def random_anchors(
    boxes: Tensor, probabilities: Tensor, centres: Tensor, target_boxes: Tensor, labels: Tensor, valid: Tensor, **_: Any
) -> Assignment:
    """Return ten anchors for every valid target, drawn without replacement from all, so that no two targets share one."""
    batch, num_targets = valid.shape
    order = torch.rand(batch, boxes.shape[1], device=boxes.device).argsort(dim=1)
    num = min(TOPK, boxes.shape[1] // num_targets)
    anchors = order[:, : num_targets * num].reshape(batch, num_targets, num)
    used = valid.unsqueeze(-1).expand_as(anchors)
    return Assignment(anchors, used, used.float())


def plain_boxes(side_logits: Tensor, anchors: decode.Anchors) -> Tensor:
    """Return boxes whose distances are one positive number for each side."""
    distances = torch.nn.functional.softplus(side_logits.mean(dim=-1))
    return torch.addcmul(anchors.places, distances, anchors.steps)


def most_likely_boxes(side_logits: Tensor, anchors: decode.Anchors) -> Tensor:
    """Return boxes whose distances are the bin of the largest logit, a whole number of strides."""
    return torch.addcmul(anchors.places, side_logits.argmax(dim=-1).float(), anchors.steps)


def next_pictures_grid(boxes: Tensor, labels: Tensor, valid: Tensor, hw: tuple[int, int], stride: int) -> Tensor:
    """Return the targets of a batch, each picture's in the place of its neighbour's."""
    return target_grid(boxes, labels, valid, hw, stride).roll(1, dims=0)


def of_another(logits: Tensor, labels: Tensor, shares: Tensor, *more: Any) -> Tensor:
    """Return the cross-entropy with labels that are shuffled within the batch."""
    order = torch.randperm(len(labels), device=labels.device)
    return WITH_ITS_OWN(logits, labels[order], shares[order], *more)


def with_another_mask(logits: Tensor, batch: Any) -> Tensor:
    """Return the loss of every picture with the mask of the one before it in the batch."""
    return pixel_cross_entropy(logits, replace(batch, masks=batch.masks.roll(1, 0)))


def compare_decodes(weights: str) -> None:
    """Print the metrics of both ways to read the distributions of a trained demo."""
    for name, function in (("mean", decode.expected_boxes), ("most likely bin", most_likely_boxes)):
        decode.expected_boxes = function
        metrics = LibreYOLO(weights).val(data="shapes", workers=0)
        print(f"{name:<16} mAP50 {metrics['metrics/mAP50']:.3f}  mAP50-95 {metrics['metrics/mAP50-95']:.3f}")


def main() -> None:
    """Replace the part named first, then run train.py."""
    part, overrides, demo = sys.argv[1], sys.argv[2:], "demo"
    if part == "most_likely_bin":
        compare_decodes(overrides[0])
        return
    if part == "shuffled_labels":
        classification.cross_entropy, demo = of_another, "demo-classify"
    elif part == "shuffled_masks":
        unet_loss.pixel_cross_entropy, demo = with_another_mask, "demo-semantic"
    elif part == "random_assigner":
        loss.task_aligned = random_anchors
    elif part == "no_dfl":
        decode.expected_boxes = loss.expected_boxes = plain_boxes
        overrides = ["dfl_gain=0", *overrides]
    elif part == "shuffled_points":
        fomo_loss.target_grid, demo = next_pictures_grid, "demo-point"
    else:
        sys.exit(f"{part} is not a part: use random_assigner, no_dfl, shuffled_points, shuffled_labels, shuffled_masks or most_likely_bin.")
    sys.argv = [str(ROOT / "train.py"), f"experiment={demo}", *overrides]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
