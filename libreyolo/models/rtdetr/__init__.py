"""RT-DETR (arXiv 2304.08069)."""

from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.models.rtdetr.recipe import RTDETRRecipe

_RELEASE = "https://github.com/lyuwenyu/storage/releases/download/v0.1/"
_RESNET50 = _RELEASE + "ResNet50_vd_ssld_v2_pretrained_from_paddle.pth"

FAMILY = Family(
    name="rtdetr",
    task="detect",
    prefix="LibreRTDETR",
    sizes={"r18": 640, "r34": 640, "r50": 640, "r50m": 640, "r101": 640, "l": 640, "x": 640},
    recipe=RTDETRRecipe,
    input=InputSpec(resize="stretch", filter="cv2", stride=32),
    backbones={
        "r18": _RELEASE + "ResNet18_vd_pretrained_from_paddle.pth",
        "r34": _RELEASE + "ResNet34_vd_pretrained_from_paddle.pth",
        "r50": _RESNET50,
        "r50m": _RESNET50,
        "r101": _RELEASE + "ResNet101_vd_ssld_pretrained_from_paddle.pth",
        "l": _RELEASE + "PPHGNetV2_L_ssld_pretrained_from_paddle.pth",
        "x": _RELEASE + "PPHGNetV2_X_ssld_pretrained_from_paddle.pth",
    },
)
