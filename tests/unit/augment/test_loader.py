import multiprocessing
import os
import random
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from libreyolo.data import side_stream
from libreyolo.data.augment.settings import AugmentSettings
from libreyolo.data.detection_loader import ROWS, eval_loader, train_loader
from libreyolo.data.loader import Loader, _end_with_lost_batch, resolve_workers
from libreyolo.data.loader_room import lost_workers_told
from libreyolo.data.sampler import EvaluationSampler
from libreyolo.errors import UserError
from libreyolo.interfaces.input import InputSpec
from tests.unit.augment.pictures import DrawnPictures, noisy_pictures

STRONG = AugmentSettings(imgsz=(48, 64), mosaic_prob=0.7, mixup_prob=0.5, hsv_prob=0.7, degrees=15, shear=5, epochs=4, no_aug_epochs=1)


def loader_of(pictures=None, settings=STRONG, *, batch=4, **more):
    return train_loader(pictures or noisy_pictures(10), settings, batch=batch, seed=11, **more)


def rows(batches):
    """Every picture of the batches by its place: images and boxes without the batch's padding."""
    out = {}
    for b in batches:
        for i, (_, place) in enumerate(b.key.tolist()):
            n = int(b.num_boxes[i])
            assert b.valid[i].tolist() == [k < n for k in range(b.boxes.shape[1])]
            assert not b.boxes[i, n:].any()
            out[place] = (int(b.index[i]), float(b.weight[i]), b.images[i], b.boxes[i, :n], b.labels[i, :n])
    return out


def assert_same(one, other):
    assert one.keys() == other.keys()
    for place in one:
        assert one[place][:2] == other[place][:2]
        for a, b in zip(one[place][2:], other[place][2:], strict=True):
            assert torch.equal(a, b)


def test_a_batch_keeps_its_promises():
    b = next(loader_of().epoch(1))
    assert b.images.shape == (4, 3, 48, 64)
    assert b.images.dtype == torch.float32
    assert b.images.is_contiguous()
    assert b.epoch == 1
    assert b.key.tolist() == [[1, p] for p in range(4)]
    rows = b.boxes.shape[1]
    assert b.boxes.shape == (4, rows, 4) and rows % ROWS == 0 and rows - ROWS < int(b.num_boxes.max()) <= rows
    x0, y0, x1, y1 = b.boxes[b.valid].unbind(1)
    assert (x0 >= 0).all() and (x0 < x1).all() and (x1 <= 64).all() and (y0 >= 0).all() and (y0 < y1).all() and (y1 <= 48).all()


def test_two_workers_give_the_same_bits_as_none_and_live_on_between_epochs():
    with_workers = loader_of(workers=2)
    for epoch in (0, 1):
        assert_same(rows(loader_of().epoch(epoch)), rows(with_workers.epoch(epoch)))
    assert len(multiprocessing.active_children()) == 2
    with_workers.close()
    assert multiprocessing.active_children() == []


def test_two_ranks_together_see_what_one_rank_sees():
    alone = rows(loader_of().epoch(2))
    ranks = [rows(loader_of(rank=r, world_size=2).epoch(2)) for r in range(2)]
    assert not ranks[0].keys() & ranks[1].keys()
    assert_same(ranks[0] | ranks[1], alone)


def test_entering_an_epoch_in_the_middle_gives_its_rest():
    loader = loader_of()
    whole = list(loader.epoch(1))
    assert_same(rows(loader.epoch(1, start_step=2)), rows(whole[2:]))


def test_epochs_differ_in_order_and_in_augmentation():
    loader = loader_of()
    first, second = (list(loader.epoch(e)) for e in (0, 1))
    assert [b.index.tolist() for b in first] != [b.index.tolist() for b in second]
    one = loader_of(DrawnPictures([(48, 64)] * 4, [None] * 4, noise=True), min_samples=16)  # every picture four times
    seen = [image.numpy().tobytes() for e in (0, 1) for b in one.epoch(e) for image in b.images]
    assert len(set(seen)) == len(seen) == 32


def test_an_epoch_may_be_left_early_and_another_begun():
    loader = loader_of(workers=2)
    expected = rows(loader_of().epoch(1))
    next(loader.epoch(0))
    assert_same(rows(loader.epoch(1)), expected)
    stale = loader.epoch(0)
    next(stale)
    assert_same(rows(loader.epoch(1)), expected)
    with pytest.raises(RuntimeError, match="newer epoch"):
        next(stale)
    loader.close()


def begun(loader, monkeypatch):
    """The epochs that the workers were told to begin with, one entry for each time."""
    seen, begin = [], loader._begin
    monkeypatch.setattr(loader, "_begin", lambda epoch, start_step, until: (seen.append((epoch, start_step)), begin(epoch, start_step, until)))
    return seen


def test_workers_read_on_into_the_epochs_that_follow_and_no_further(monkeypatch):
    loader, drawn = loader_of(workers=2), []
    batches = loader._sampler.batches
    monkeypatch.setattr(loader._sampler, "batches", lambda epoch, start: ((drawn.append(epoch), items)[1] for items in batches(epoch, start)))
    seen = begun(loader, monkeypatch)
    for epoch in range(3):
        got = rows(loader.epoch(epoch, until=3))
        assert_same(got, rows(loader_of().epoch(epoch)))
        assert max(drawn) >= min(epoch + 1, 2)  # handed out before anybody asked for it
    assert seen == [(0, 0)]
    assert drawn == [0] * 3 + [1] * 3 + [2] * 3
    assert_same(rows(loader.epoch(2, until=3)), rows(loader_of().epoch(2)))  # any epoch may come again
    assert seen == [(0, 0), (2, 0)]
    loader.close()


def test_an_epoch_entered_in_the_middle_goes_on_into_the_next_and_one_left_early_does_not(monkeypatch):
    loader = loader_of(workers=2)
    seen = begun(loader, monkeypatch)
    whole = [list(loader_of().epoch(e)) for e in range(3)]
    assert_same(rows(loader.epoch(0, start_step=1, until=3)), rows(whole[0][1:]))
    left = loader.epoch(1, until=3)
    assert_same(rows([next(left)]), rows(whole[1][:1]))
    assert_same(rows(loader.epoch(2, until=3)), rows(whole[2]))
    assert seen == [(0, 1), (2, 0)]
    with pytest.raises(RuntimeError, match="newer epoch"):
        next(left)
    loader.close()


def test_a_loader_that_was_started_is_taken_up_where_it_was_started_and_nowhere_else(monkeypatch):
    loader = loader_of(workers=2)
    seen = begun(loader, monkeypatch)
    loader.start(1, 1, 3)
    assert len(multiprocessing.active_children()) == 2
    assert_same(rows(loader.epoch(1, start_step=1, until=3)), rows(loader_of().epoch(1, start_step=1)))
    assert_same(rows(loader.epoch(2, until=3)), rows(loader_of().epoch(2)))
    assert seen == [(1, 1)]
    loader.start(0, 0, 1)
    assert_same(rows(loader.epoch(1)), rows(loader_of().epoch(1)))
    assert seen == [(1, 1), (0, 0), (1, 0)]
    loader.close()
    assert multiprocessing.active_children() == []


def test_without_workers_of_their_own_epochs_end_where_they_end(monkeypatch):
    loader = loader_of()
    seen = begun(loader, monkeypatch)
    for epoch in range(2):
        assert_same(rows(loader.epoch(epoch, until=2)), rows(loader_of().epoch(epoch)))
    assert seen == [(0, 0), (1, 0)]


def test_the_short_last_batch_is_full_and_marks_its_padding():
    last = list(loader_of().epoch(0))[-1]  # 10 pictures in fours
    assert last.images.shape[0] == 4
    assert last.weight.tolist() == [1, 1, 0, 0]


def test_a_set_of_one_picture_trains():
    loader = loader_of(noisy_pictures(1))
    (batch,) = loader.epoch(0)
    assert loader.steps_per_epoch == 1
    assert batch.weight.tolist() == [1, 0]
    assert batch.index.tolist() == [0, 0]


def test_pictures_without_boxes_give_one_empty_row():
    (batch,) = loader_of(DrawnPictures([(48, 64)] * 4, [None] * 4)).epoch(0)
    assert batch.num_boxes.tolist() == [0, 0, 0, 0]
    assert batch.boxes.shape == (4, ROWS, 4) and not batch.valid.any()
    assert not batch.valid.any()


def test_class_balance_repeats_the_rare_class():
    # Label = index % 3 where there are boxes; one picture of 60 has class 2: f = 1/60, r = sqrt(0.1 * 60) = 2.4.
    rectangles = [(5, 5, 30, 30) if i % 3 == 0 or i == 2 else None for i in range(60)]
    loader = loader_of(DrawnPictures([(48, 64)] * 60, rectangles), class_balanced=True)
    seen = [i for b in loader.epoch(0) for i, w in zip(b.index.tolist(), b.weight.tolist(), strict=True) if w]
    assert seen.count(2) in (2, 3)
    assert set(seen) == set(range(60))


def test_the_users_generators_are_left_alone():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    loader = loader_of(workers=1)
    list(loader.epoch(0))
    loader.close()
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize("workers", [0, 1])
def test_a_picture_that_cannot_be_read_is_named(workers):
    pictures = noisy_pictures(4)
    pictures.broken = {2}
    loader = eval_loader(pictures, imgsz=(32, 32), spec=InputSpec(), batch=2, workers=workers)
    with pytest.raises(UserError) as error:
        list(loader.epoch(0))
    assert str(error.value) == "drawn/2.png can't be read: image file is truncated"


class WorkerFacts:
    """A dataset that tells about the process it runs in."""

    def __getitem__(self, item):
        if item.index == 3:
            raise ZeroDivisionError("a bug")
        return (
            signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, None),
            torch.get_num_threads(),
            (random.random(), float(np.random.rand()), float(torch.rand(()))),
        )

    def describe(self, index):
        return f"number {index}"


def same_list(samples):
    return samples


def no_preparation(host, device):
    return host


def facts_of(rank, n=2):
    sampler = EvaluationSampler(n, batch=1)
    loader = Loader(WorkerFacts(), sampler, collate=same_list, prepare=no_preparation, workers=2, seed=5, rank=rank, persistent=False)
    return [facts for batch in loader.epoch(0) for facts in batch]


def test_workers_leave_ctrl_c_to_the_parent_use_one_thread_and_have_their_own_seeds():
    facts = facts_of(0) + facts_of(1)
    assert [f[:3] for f in facts] == [(True, True, 1)] * 4
    assert len({f[3] for f in facts}) == 4  # two workers of two ranks
    assert facts_of(0) == facts[:2]  # and the same again
    assert multiprocessing.active_children() == []  # not persistent: gone after the epoch


def test_a_bug_in_a_worker_keeps_its_traceback_and_names_the_picture():
    with pytest.raises(RuntimeError, match="number 3") as error:
        facts_of(0, n=4)
    assert "ZeroDivisionError" in str(error.value)
    assert "__getitem__" in str(error.value)


class Suicidal(WorkerFacts):
    def __getitem__(self, item):
        signal.raise_signal(signal.SIGKILL)


def test_a_killed_worker_is_told_with_advice():
    loader = Loader(Suicidal(), EvaluationSampler(2, batch=1), collate=same_list, prepare=no_preparation, workers=1)
    with pytest.raises(UserError, match=r"loader process ended .*workers=0"):
        list(loader.epoch(0))
    loader.close()


class Unsendable:
    """What torch's tensors are where /dev/shm is full."""

    def __reduce__(self):
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)\nmore")


def unsendable(samples):
    return Unsendable()


def test_a_batch_that_cannot_be_handed_over_is_told_and_not_waited_for_without_end():
    loader = Loader(WorkerFacts(), EvaluationSampler(2, batch=1), collate=unsendable, prepare=no_preparation, workers=1)
    before = signal.signal(signal.SIGALRM, lambda number, frame: pytest.fail("the lost batch is waited for"))
    signal.alarm(60)
    try:
        with pytest.raises(UserError, match=r"loader process ended \(DataLoader worker \(pid.*\) exited unexpectedly[^.]*\), .*workers=0"):
            list(loader.epoch(0))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        loader.close()


def test_a_worker_says_why_its_batch_could_not_be_handed_over(monkeypatch, caplog):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    _end_with_lost_batch(RuntimeError("unable to allocate shared memory: No space left on device (28)\nframe #0"), None)
    assert codes == [1]
    assert caplog.messages == ["A batch could not be handed over: unable to allocate shared memory: No space left on device (28)."]


def test_the_end_of_a_loader_process_is_told_wherever_the_training_is():
    """torch raises it in a handler of SIGCHLD, so between any two lines."""
    told = r"loader process ended \(DataLoader worker \(pid 7\) is killed by signal: Bus error\), .*workers=0"
    with pytest.raises(UserError, match=told), lost_workers_told():
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that ...")
    with pytest.raises(RuntimeError, match="CUDA"), lost_workers_told():
        raise RuntimeError("CUDA error")


def test_waiting_is_counted_and_reset():
    loader = loader_of()
    list(loader.epoch(0))
    assert loader.waiting_seconds > 0
    loader.reset_waiting()
    assert loader.waiting_seconds == 0


def test_evaluation_shares_pictures_without_padding_and_keeps_boxes_in_input_pixels():
    pictures = noisy_pictures(5)
    spec = InputSpec(pad_position="center")
    ranks = [list(eval_loader(pictures, imgsz=(64, 64), spec=spec, batch=2, rank=r, world_size=2).epoch(0)) for r in range(2)]
    assert [[b.index.tolist() for b in rank] for rank in ranks] == [[[0, 2], [4]], [[1, 3]]]
    for batch in (b for rank in ranks for b in rank):
        assert batch.weight.tolist() == [1.0] * len(batch.index)
        for i, index in enumerate(batch.index.tolist()):
            assert tuple(batch.original_hw[i].tolist()) == pictures.size(index)
            sx, sy, tx, ty = batch.to_input[i].tolist()
            if pictures.rectangles[index] is None:
                assert batch.num_boxes[i] == 0
                continue
            x0, y0, x1, y1 = pictures.rectangles[index]
            assert batch.boxes[i, 0].tolist() == pytest.approx([sx * x0 + tx, sy * y0 + ty, sx * x1 + tx, sy * y1 + ty], abs=1e-4)
            # The middle of the rectangle is white in the picture as well.
            assert batch.images[i, :, int(sy * (y0 + y1) / 2 + ty), int(sx * (x0 + x1) / 2 + tx)].min() == 1.0


def test_a_rank_without_evaluation_pictures_yields_nothing():
    loader = eval_loader(noisy_pictures(1), imgsz=(64, 64), spec=InputSpec(), batch=2, rank=1, world_size=2, workers=1)
    assert loader.steps_per_epoch == 0
    assert list(loader.epoch(0)) == []
    assert loader.num_pictures == 1


def test_workers_are_capped_by_the_cpus_of_the_host_over_its_ranks():
    workers, message = resolve_workers(64, 2, 4)
    assert workers == 2
    assert "workers=64" in message and "4 CPUs" in message and "2 ranks" in message
    assert resolve_workers(2, 2, 4) == (2, None)
    assert resolve_workers(0, 8, 4) == (0, None)
    assert resolve_workers(1, 8, 4)[0] == 0
    with pytest.raises(UserError, match="workers=-1"):
        resolve_workers(-1, 1, 4)


@dataclass
class FakeGPU:
    """What torch was told of streams. made: devices that got one; current: devices and streams inside whose blocks we are."""

    made: list[str]
    current: list[str]


@pytest.fixture
def gpu(monkeypatch):
    fake = FakeGPU([], [])

    @contextmanager
    def on(what):
        fake.current.append(str(what))
        yield
        fake.current.pop()

    class Stream:
        def __init__(self, device):
            fake.made.append(str(device))

        def __str__(self):
            return f"side {len(fake.made)}"

        def wait_event(self, event): ...

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda stream: None))
    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(wait_event=lambda event: None))
    side_stream._side_stream.cache_clear()
    yield fake
    side_stream._side_stream.cache_clear()


def test_all_loaders_of_a_gpu_prepare_on_one_side_stream_and_pin_for_that_gpu(monkeypatch, gpu):
    # Memory that a stream has used is used again by that stream alone: a stream of each epoch's own would keep a batch's memory for each.
    class Pinning:
        """A DataLoader as far as a pass over it goes."""

        def __iter__(self):
            assert gpu.current == ["cuda:1"]  # whose context its pinning thread will open
            return iter([1, 2])

    seen = []
    for _ in range(2):
        loader = loader_of(device="cuda:1")
        loader._prepare = lambda host, device: seen.append((host, list(gpu.current))) or SimpleBatch(host)
        monkeypatch.setattr(loader, "_start", Pinning)
        for epoch in (0, 1):
            assert [batch.value for batch in loader.epoch(epoch)] == [1, 2]
    assert gpu.made == ["cuda:1"]
    assert seen == [(host, ["cuda:1", "side 1"]) for _ in range(4) for host in (1, 2)]


def planned(monkeypatch, pictures=10, broken=None):
    """A loader of fours on a fake GPU, whose batches are (epoch, step) as its workers are told to read them; and a list of those it has prepared."""
    loader, prepared = loader_of(noisy_pictures(pictures), device="cuda:0", workers=2), []

    def prepare(items, device):
        place = (items[0].epoch, items[0].place // 4)
        if place == broken:
            raise UserError("unreadable")
        prepared.append(place)
        return SimpleBatch(place)

    loader._prepare = prepare
    monkeypatch.setattr(loader, "_start", lambda: loader._plan)
    return loader, prepared


@pytest.mark.parametrize("pictures", [3, 4, 10])
def test_the_first_batch_of_an_epoch_is_prepared_beside_the_last_step_of_the_one_before(monkeypatch, gpu, pictures):
    loader, prepared = planned(monkeypatch, pictures)
    seen = begun(loader, monkeypatch)
    steps = loader.steps(0)
    for epoch in range(3):
        given = []
        for batch in loader.epoch(epoch, until=3):
            given.append(batch.value)
        assert given == [(epoch, step) for step in range(steps)]
        assert prepared[-1] == ((epoch + 1, 0) if epoch < 2 else (2, steps - 1))
    assert len(prepared) == 3 * steps  # each once
    assert seen == [(0, 0)]


def test_the_first_step_of_an_epoch_does_not_wait_for_the_second_batch(monkeypatch, gpu):
    loader, prepared = planned(monkeypatch)
    for batch in loader.epoch(0, until=2):
        assert prepared[-1] == {(0, 0): (0, 0), (0, 1): (0, 2), (0, 2): (1, 0)}[batch.value]
    assert next(loader.epoch(1, until=2)).value == prepared[-1] == (1, 0)


def test_a_batch_prepared_early_is_dropped_where_another_is_wanted(monkeypatch, gpu):
    loader, _ = planned(monkeypatch)
    list(loader.epoch(0, until=3))
    assert [batch.value for batch in loader.epoch(1, start_step=1, until=3)] == [(1, 1), (1, 2)]
    assert [batch.value for batch in loader.epoch(0, until=3)] == [(0, 0), (0, 1), (0, 2)]
    loader.close()
    assert [batch.value for batch in loader.epoch(1, until=3)] == [(1, 0), (1, 1), (1, 2)]


def test_a_picture_that_cannot_be_read_does_not_end_the_epoch_before_its_own(monkeypatch, gpu):
    loader, _ = planned(monkeypatch, broken=(1, 0))
    assert len(list(loader.epoch(0, until=2))) == 3
    with pytest.raises(UserError, match="unreadable"):
        next(loader.epoch(1, until=2))


@dataclass
class SimpleBatch:
    value: object


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_side_stream_delivers_the_same_batches():
    expected = rows(loader_of().epoch(0))
    loader = loader_of(workers=2, device="cuda")
    for _ in range(3):
        held = []
        for b in loader.epoch(0):
            # Work on the step's stream while the next batch is made on the side stream into recycled memory.
            torch.ones((2048, 2048), device="cuda") @ torch.ones((2048, 2048), device="cuda")
            held.append(b.images * 1.0)
            seen = rows([b])
            for place, row in seen.items():
                torch.testing.assert_close(row[2].cpu(), expected[place][2], atol=1e-4, rtol=0)
                assert torch.equal(row[3].cpu(), expected[place][3])
    loader.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu_epochs_do_not_add_to_the_memory_that_is_held():
    held = []
    for _ in range(6):
        loader = loader_of(noisy_pictures(10), AugmentSettings(imgsz=(640, 640)), device="cuda:0")
        for batch in loader.epoch(0):
            batch.images.sum()
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_reserved())
        loader.close()
    assert held[-1] <= 1.2 * held[1], held
