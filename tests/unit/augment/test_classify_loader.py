"""Batches for classifiers: functions of (seed, epoch, place), with partners from the whole set, and phases of the recipe."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo.data.augment.crop import centre_crop
from libreyolo.data.classify import load_classify
from libreyolo.data.classify_loader import ClassifySettings, centre_batch, eval_loader, train_loader
from libreyolo.data.image_set import ImageSet
from libreyolo.data.sampler import repeat_factors
from libreyolo.interfaces.batch import ClassifyBatch
from libreyolo.models.resnet import FAMILY

SPEC = FAMILY.input
PLAIN = ClassifySettings(imgsz=(16, 16), source_hw=(64, 64), epochs=4)
STRONG = replace(PLAIN, auto_augment="randaugment", erasing=0.5, mixup=0.4, cutmix=0.4, flipud=0.3)
GREY = (40, 200)  # of the two classes


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """Nine pictures: seven dark ones of class 0, two bright ones of class 1, each with a grey of its own."""
    root = tmp_path_factory.mktemp("greys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBREYOLO_CACHE", str(root / "cache"))
        for label, count in enumerate((7, 2)):
            for i in range(count):
                path = root / "set" / "train" / f"c{label}" / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (20 + 3 * i, 24), (GREY[label] + i,) * 3).save(path)
        return load_classify(root / "set", cwd=root).train


def epoch(pictures: ImageSet, settings: ClassifySettings, number: int, **arguments: Any) -> list[ClassifyBatch]:
    loader = train_loader(pictures, settings, SPEC, **{"batch": 4, "seed": 3} | arguments)
    batches = list(loader.epoch(number))
    loader.close()
    return batches


def by_place(batches: list[ClassifyBatch]) -> dict[int, Any]:
    found = {}
    for batch in batches:
        for i, (_, place) in enumerate(batch.key.tolist()):
            digest = hashlib.sha256(batch.images[i].numpy().tobytes()).hexdigest()
            found[place] = (int(batch.index[i]), float(batch.weight[i]), batch.labels[i].tolist(), batch.shares[i].tolist(), digest)
    return found


def test_ranks_workers_and_history_change_nothing(pictures: ImageSet) -> None:
    alone = by_place(epoch(pictures, STRONG, 1))
    assert any(shares[0] < 1 for *_, shares, _ in alone.values())
    shared = [by_place(epoch(pictures, STRONG, 1, rank=rank, world_size=2, workers=rank)) for rank in (0, 1)]
    assert shared[0].keys().isdisjoint(shared[1])
    assert shared[0] | shared[1] == alone
    loader = train_loader(pictures, STRONG, SPEC, batch=4, seed=3)
    list(loader.epoch(0))
    assert by_place(list(loader.epoch(1, start_step=2))) == {place: seen for place, seen in alone.items() if place >= 8}


def test_other_seeds_and_epochs_give_other_pictures(pictures: ImageSet) -> None:
    digests = [{seen[-1] for seen in by_place(epoch(pictures, STRONG, *key)).values()} for key in [(0,), (1,)]]
    digests.append({seen[-1] for seen in by_place(epoch(pictures, STRONG, 0, seed=4)).values()})
    assert not digests[0] & digests[1] and not digests[0] & digests[2]


def test_the_last_epochs_have_crops_and_flips_only_and_those_that_they_would_have_had(pictures: ImageSet) -> None:
    ending = replace(STRONG, no_aug_epochs=2)
    assert by_place(epoch(pictures, ending, 1)) == by_place(epoch(pictures, STRONG, 1))
    last = by_place(epoch(pictures, ending, 2))
    assert last == by_place(epoch(pictures, replace(PLAIN, flipud=STRONG.flipud), 2))
    assert all(shares == [1.0, 0.0] for _, _, _, shares, _ in last.values())


def test_mixed_pixels_and_labels_have_the_same_shares(pictures: ImageSet) -> None:
    """Each picture is one grey, so its mean says how much of it is seen."""
    mixed = 0
    for settings in (replace(PLAIN, mixup=1.0), replace(PLAIN, cutmix=1.0)):
        for number in range(4):
            for batch in epoch(pictures, settings, number):
                for i in range(len(batch.index)):
                    own, other = batch.labels[i].tolist()
                    if own != other:
                        mixed += 1
                        greys = [GREY[k] for k in (own, other)]
                        expected = sum(s * g for s, g in zip(batch.shares[i].tolist(), greys, strict=True)) / 255
                        assert float(batch.images[i].mean()) == pytest.approx(expected, abs=7 / 255)
    assert mixed > 20


def test_partners_come_from_the_whole_set_not_from_the_batch(pictures: ImageSet) -> None:
    """A batch of one class may get the other one's label."""
    settings = replace(PLAIN, mixup=1.0, epochs=30)
    labels = [batch.labels[i].tolist() for number in range(30) for batch in epoch(pictures, settings, number, batch=2)
              for i in range(2) if set(batch.labels[:, 0].tolist()) == {0}]  # fmt: skip
    share = sum(other == 1 for _, other in labels) / len(labels)
    assert 0.12 < share < 0.33  # two pictures of nine


def test_mixup_and_cutmix_happen_as_often_as_asked(pictures: ImageSet) -> None:
    settings = replace(PLAIN, mixup=0.2, cutmix=0.5, epochs=200)
    loader = train_loader(pictures, settings, SPEC, batch=9, seed=3)
    kinds = [loader._guarded[item].mix for number in range(60) for items in loader._sampler.batches(number) for item in items]  # type: ignore[attr-defined]
    assert abs(sum(m.blend < 1 for m in kinds) / len(kinds) - 0.2) < 0.06
    assert abs(sum(m.pasted[2] > 0 for m in kinds) / len(kinds) - 0.5) < 0.07


def test_what_is_erased_becomes_0_for_the_network(pictures: ImageSet) -> None:
    found = [batch.images for batch in epoch(pictures, replace(PLAIN, erasing=1.0), 0)]
    mean = torch.tensor(SPEC.mean)[:, None]
    for images in found:
        for image in images:
            assert (image.flatten(1) == mean).all(dim=0).any()


def test_a_balanced_epoch_shows_the_rare_class_more_often(pictures: ImageSet) -> None:
    factors = repeat_factors(pictures.offsets, pictures.label_rows, len(pictures), threshold=0.1)
    assert (factors == 1).all()  # two of nine are no rare class
    many = ImageSet(
        pictures.paths, sizes=pictures.sizes, box_rows=pictures.box_rows, label_rows=np.array([0] * 8 + [1]),
        offsets=pictures.offsets, stamps=pictures.stamps, nc=2,
    )  # fmt: skip
    many.label_rows = np.array([0] * 8 + [1])
    assert repeat_factors(many.offsets, many.label_rows, 9, threshold=0.5)[-1] == pytest.approx((0.5 * 9) ** 0.5)
    assert sum(len(b.index) for b in epoch(many, PLAIN, 0, class_balanced=True)) >= 9


def test_evaluation_and_prediction_see_the_same_pixels_and_every_picture_once(pictures: ImageSet) -> None:
    seen: dict[int, torch.Tensor] = {}
    for rank in (0, 1):
        for batch in eval_loader(pictures, imgsz=(16, 16), spec=SPEC, batch=2, rank=rank, world_size=2).epoch(0):
            assert torch.equal(batch.labels[:, 0], torch.from_numpy(pictures.label_rows)[batch.index])
            seen |= dict(zip(batch.index.tolist(), batch.images, strict=True))
    assert sorted(seen) == list(range(9))
    predicted = centre_batch([pictures.image(i) for i in range(9)], (16, 16), SPEC).images
    for index, image in seen.items():
        assert torch.equal(image, predicted[index])
        assert torch.equal((image * 255).round().byte().permute(1, 2, 0), torch.tensor(centre_crop(pictures.image(index), (16, 16), SPEC)))


def test_a_batch_names_the_pictures_that_it_shows_partners_too(pictures: ImageSet) -> None:
    loader = train_loader(pictures, replace(PLAIN, mixup=1.0), SPEC, batch=9, seed=3)
    batch = next(iter(loader.epoch(0)))
    named = loader.pictures_of(batch)()
    own = {str(pictures.path(i)) for i in batch.index.tolist()}
    assert own <= set(named)
    few = train_loader(pictures, replace(PLAIN, mixup=1.0), SPEC, batch=1, seed=3)
    shown = [(b, few.pictures_of(b)()) for number in range(4) for b in few.epoch(number)]
    assert any(len(names) == 2 for _, names in shown)
    for mixed, names in shown:
        labels = {int(Path(name).parent.name.removeprefix("c")) for name in names}
        assert labels == set(mixed.labels[0].tolist())
    assert eval_loader(pictures, imgsz=(16, 16), spec=SPEC, batch=2)._guarded.dataset.describe(0) == str(pictures.path(0))  # type: ignore[attr-defined]
