import numpy as np
import pytest
import torch

from libreyolo.data.augment.letterbox import letterbox, letterbox_geometry
from libreyolo.data.augment.resize import resize_bilinear
from libreyolo.interfaces.input import InputSpec
from libreyolo.ops.input import apply_input_spec

# cv2.resize(..., INTER_LINEAR) of `pattern()` in OpenCV 4.10 and 5.0.
OPENCV_7X3 = [
    [[30, 110, 176], [100, 16, 4], [107, 115, 110]],
    [[67, 76, 194], [82, 79, 57], [124, 92, 76]],
    [[128, 23, 222], [53, 180, 142], [152, 54, 23]],
    [[112, 64, 175], [33, 163, 109], [146, 69, 22]],
    [[92, 108, 123], [15, 129, 77], [142, 86, 29]],
    [[125, 76, 123], [6, 104, 183], [190, 70, 45]],
    [[145, 55, 123], [1, 89, 249], [221, 59, 55]],
]
OPENCV_2X9_FIRST_ROW = [
    [69, 91, 185],
    [82, 63, 201],
    [106, 18, 229],
    [94, 51, 165],
    [75, 105, 79],
    [82, 114, 90],
    [95, 116, 94],
    [131, 82, 63],
    [153, 63, 45],
]


def pattern():
    y, x, c = np.arange(4)[:, None, None], np.arange(5)[None, :, None], np.arange(3)
    return ((y * 61 + x * 37 + c * 90) ** 2 % 256).astype(np.uint8)


def peers_picture():
    """The 97x131 picture whose preprocessed means and samples published predictors gave: a smooth pattern and noise."""
    noise = np.random.Generator(np.random.PCG64(99)).random((1, 3, 97, 131))[0]
    y, x, c = (np.arange(97) / 97)[None, :, None], (np.arange(131) / 131)[None, None, :], (np.arange(3) + 1.0)[:, None, None]
    value = (0.25 + 0.25 * np.sin(2 * np.pi * (y + c * x)) + 0.5 * noise).astype(np.float32)
    return np.round(value.transpose(1, 2, 0) * 255).astype(np.uint8)


MEAN_255, STD_255 = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
PEERS = {
    "yolo9": (InputSpec(), 0.4858105480670929, 0.17432737350463867, {(0, 10, 20): 0.898039, (1, 20, 40): 0.356863, (0, 159, 5): 0.447059}),
    "yolox": (
        InputSpec(channels="bgr", scale=255.0, filter="pil"),
        123.97920227050781,
        44.463565826416016,
        {(0, 0, 0): 133.0, (0, 10, 20): 181.0, (1, 20, 40): 91.0, (2, 80, 80): 189.0, (2, 159, 159): 114.0},
    ),
    "rtdetr": (InputSpec(resize="stretch"), 0.49962329864501953, 0.2011447697877884, {(0, 10, 20): 0.639216, (2, 80, 80): 0.443137}),
    "rtdetrv4": (
        InputSpec(resize="stretch", filter="pil"),
        0.5001299977302551,
        0.2011650949716568,
        {(0, 10, 20): 0.643137, (1, 20, 40): 0.321569},
    ),
    "yolonas": (
        InputSpec(filter="pil", pad_position="center"),
        0.4861929416656494,
        0.17436692118644714,
        {(0, 10, 20): 0.447059, (2, 80, 80): 0.47451},
    ),
    "rtmdet": (
        InputSpec(channels="bgr", scale=255.0, mean=MEAN_255[::-1], std=STD_255[::-1], filter="pil"),
        0.1654665321111679,
        0.7843666672706604,
        {(0, 0, 0): 0.513638, (0, 10, 20): 1.35024, (0, 159, 5): 0.182484},
    ),
    "picodet": (
        InputSpec(scale=255.0, mean=MEAN_255, std=STD_255, resize="stretch"),
        0.22489842772483826,
        0.9010224938392639,
        {(0, 0, 0): 0.074065, (1, 20, 40): -0.617647, (2, 159, 159): 0.583355},
    ),
}


@pytest.mark.parametrize("peer", PEERS)
def test_preprocessing_matches_the_published_predictor(peer):
    spec, mean, std, samples = PEERS[peer]
    canvas, _ = letterbox(peers_picture(), (160, 160), spec)
    image = apply_input_spec(torch.from_numpy(canvas.copy()).permute(2, 0, 1)[None].float() / 255, spec)[0]
    for at, value in samples.items():
        assert image[at].item() == pytest.approx(value, abs=1e-6)
    assert image.mean().item() == pytest.approx(mean, rel=1e-6)
    assert image.std().item() == pytest.approx(std, rel=1e-6)


def test_resizing_gives_the_bits_of_opencv():
    assert resize_bilinear(pattern(), (7, 3)).tolist() == OPENCV_7X3
    assert resize_bilinear(pattern(), (2, 9))[0].tolist() == OPENCV_2X9_FIRST_ROW


def test_exact_halving_is_the_rounded_mean_of_four():
    image = np.zeros((2, 4, 3), np.uint8)
    image[:, :2] = [[[1], [2]], [[3], [4]]]  # mean 2.5, rounded up
    assert resize_bilinear(image, (1, 2))[0, :, 0].tolist() == [3, 0]


def test_a_picture_of_the_right_size_is_not_touched():
    image = pattern()
    assert resize_bilinear(image, (4, 5)) is image


@pytest.mark.parametrize("filter", ["cv2", "pil"])
def test_a_constant_picture_stays_constant(filter):
    image = np.full((13, 7, 3), 201, np.uint8)
    for hw in ((5, 20), (40, 3), (1, 1)):
        assert np.unique(resize_bilinear(image, hw, filter)).tolist() == [201]


def test_geometry_cuts_the_short_side_and_keeps_the_long_one():
    new_hw, to_input = letterbox_geometry((97, 131), (160, 160), InputSpec())
    assert new_hw == (118, 160)  # 97 * 160 / 131 = 118.47
    assert to_input == pytest.approx((160 / 131, 160 / 131, 0, 0))
    new_hw, to_input = letterbox_geometry((97, 131), (160, 160), InputSpec(pad_position="center"))
    assert to_input[2:] == (0, 21)
    assert letterbox_geometry((100, 40), (64, 96), InputSpec(resize="stretch")) == ((64, 96), (96 / 40, 64 / 100, 0, 0))


def test_the_long_side_always_fills_the_input():
    for long in range(1, 2000):
        (new_h, new_w), _ = letterbox_geometry((max(1, long // 2), long), (640, 640), InputSpec())
        assert new_w == 640
        assert 1 <= new_h <= 640


def test_a_sliver_keeps_one_pixel():
    assert letterbox_geometry((1, 5000), (64, 64), InputSpec())[0] == (1, 64)


def test_centred_padding_surrounds_the_picture():
    canvas, (_, _, left, top) = letterbox(np.full((20, 40, 3), 7, np.uint8), (40, 40), InputSpec(pad_position="center", pad=99))
    assert (left, top) == (0, 10)
    assert np.unique(canvas[10:30]).tolist() == [7]
    assert np.unique(canvas[:10]).tolist() == np.unique(canvas[30:]).tolist() == [99]


def test_the_input_spec_orders_scales_and_normalises():
    rgb = torch.tensor([0.1, 0.2, 0.4])[None, :, None, None]
    spec = InputSpec(channels="bgr", scale=10.0, mean=(1.0, 2.0, 3.0), std=(2.0, 4.0, 8.0))
    assert apply_input_spec(rgb, spec).flatten().tolist() == pytest.approx([(4 - 1) / 2, (2 - 2) / 4, (1 - 3) / 8])
    assert rgb.flatten().tolist() == pytest.approx([0.1, 0.2, 0.4])
    assert apply_input_spec(rgb, InputSpec()) is rgb
