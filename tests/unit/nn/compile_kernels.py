"""Compile every kernel for a GPU (compute capability 9.0), which takes none: run as a script, where Triton's interpreter is off."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from libreyolo.data.augment import paint, paint_kernel
from libreyolo.nn import neighbour_mean
from libreyolo.nn.fused import kernels, norm_act, pair_kernels, window_kernels
from tests.unit.nn import launch_kernels

# Kernel -> types of its arguments but for constants; "map" is an activation's type.
FLOATS, INTS = "*fp32", "i32"
TILES: dict[str, int] = {"BM": norm_act.GRADIENT_TILE // 64, "BC": 64, "BP": norm_act.PARTS_TILE // 64, "RANKS": 2, "ACT": kernels.SILU}
TILES |= {"MEET": True, "APART": True}
TYPES: dict[Any, list[str]] = {
    kernels.sums_kernel: ["map", FLOATS, "*i32", FLOATS, "*i64", *[INTS] * 5],
    kernels.apply_kernel: ["map", "map", *[FLOATS] * 5, "*i64", INTS, INTS, "fp32", "fp32"],
    kernels.gradient_sums_kernel: ["map", "map", FLOATS, "*i32", *[FLOATS] * 4, "*i64", *[INTS] * 6, "fp32"],
    kernels.gradient_kernel: ["map", "map", "map", *[FLOATS] * 4, INTS, INTS, INTS, "fp32"],
    pair_kernels.pair_sums_kernel: ["map", "map", FLOATS, "*i32", FLOATS, "*i64", *[INTS] * 5],
    pair_kernels.pair_apply_kernel: ["map"] * 3 + [FLOATS] * 7 + ["*i64", FLOATS, FLOATS, "*i64", INTS, INTS, "fp32", "fp32"],
    pair_kernels.pair_gradient_sums_kernel: ["map"] * 3 + [FLOATS, "*i32", *[FLOATS] * 6, "*i64", *[INTS] * 6, "fp32"],
    pair_kernels.pair_gradient_kernel: ["map"] * 5 + [FLOATS] * 6 + [INTS, INTS, INTS, "fp32"],
    window_kernels.means_kernel: ["map", "map", *[INTS] * 4],
    paint_kernel.paint_kernel: ["*u8", "*i64", FLOATS, FLOATS, FLOATS, *[INTS] * 5, "fp32"],
}
OTHERS: dict[Any, dict[str, int]] = {
    window_kernels.means_kernel: {"PADDING": 1, "ROWS": neighbour_mean.ROWS, "BLOCK": neighbour_mean.BLOCK},
    paint_kernel.paint_kernel: {"SLOTS": 4, "MIXED": True, "PROJECTIVE": True, "ROWS": paint.ROWS, "COLUMNS": paint.COLUMNS},
}


def compiled(kernel: Any, types: list[str], constants: dict[str, int]) -> bytes:
    """Return the machine code of a kernel."""
    names = [name for name in kernel.arg_names if name not in constants]
    signature = dict(zip(names, types, strict=True))
    try:
        source = ASTSource(kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, constexprs=constants)
    except TypeError:  # as before 3.3
        source = ASTSource(kernel, signature, constants=constants)
    code: bytes = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
    return code


if __name__ == "__main__":
    for kernel, types in TYPES.items():
        constants = OTHERS.get(kernel) or {name: value for name, value in TILES.items() if name in kernel.arg_names}
        assert len(compiled(kernel, ["*bf16" if t == "map" else t for t in types], constants)) > 1000
    for kind, act in (("*fp32", kernels.RELU), ("*fp16", kernels.NONE)):
        constants = {name: value for name, value in TILES.items() if name in kernels.apply_kernel.arg_names} | {"ACT": act, "RANKS": 1}
        assert len(compiled(kernels.apply_kernel, [kind if t == "map" else t for t in TYPES[kernels.apply_kernel]], constants)) > 1000
    known = {
        name
        for module in (kernels, pair_kernels, window_kernels, paint_kernel)
        for name, value in vars(module).items()
        if name.endswith("_kernel") and hasattr(value, "arg_names")
    }
    assert known == {kernel.__name__ for kernel in TYPES}
    print("compiled", len(TYPES))
    print("launched", launch_kernels.check())
