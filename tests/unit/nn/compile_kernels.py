"""Compile every kernel of `nn.fused` for a GPU (compute capability 9.0), which takes none: run as a script, where Triton's interpreter is off."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from libreyolo.nn import neighbour_mean
from libreyolo.nn.fused import kernels, norm_act, window_kernels

# Kernel -> types of its arguments but for constants; "map" is an activation's type.
FLOATS, ROWS = "*fp32", {"BM": norm_act.BLOCK_ROWS, "BC": norm_act.BLOCK_COLUMNS}
PARTS = {"BP": norm_act.BLOCK_PARTS, "BC": norm_act.BLOCK_COLUMNS}
SIGNATURES: dict[Any, tuple[list[str], dict[str, int]]] = {
    kernels.sums_kernel: (["map", FLOATS, *["i32"] * 3], ROWS),
    kernels.statistics_kernel: (["map", *[FLOATS] * 5, "i32", "i32", *["fp32"] * 3], PARTS),
    kernels.gradient_means_kernel: ([*[FLOATS] * 3, "i32", "i32", "fp32"], PARTS),
    kernels.apply_kernel: (["map", "map", *[FLOATS] * 4, "i32", "i32"], ROWS | {"ACT": 0}),
    kernels.gradient_sums_kernel: (["map", "map", *[FLOATS] * 5, *["i32"] * 3], ROWS | {"ACT": 0}),
    kernels.gradient_kernel: (["map", "map", "map", *[FLOATS] * 6, "i32", "i32"], ROWS | {"ACT": 0}),
    window_kernels.means_kernel: (["map", "map", *["i32"] * 4], {"PADDING": 1, "ROWS": neighbour_mean.ROWS, "BLOCK": neighbour_mean.BLOCK}),
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
    for kernel, (types, constants) in SIGNATURES.items():
        chosen = constants | ({"ACT": kernels.SILU} if "ACT" in constants else {})
        assert len(compiled(kernel, ["*bf16" if t == "map" else t for t in types], chosen)) > 1000
    types, constants = SIGNATURES[kernels.apply_kernel]
    for kind, act in (("*fp32", kernels.RELU), ("*fp16", kernels.NONE)):
        assert len(compiled(kernels.apply_kernel, [kind if t == "map" else t for t in types], constants | {"ACT": act})) > 1000
    known = {name for module in (kernels, window_kernels) for name, value in vars(module).items() if name.endswith("_kernel") and hasattr(value, "arg_names")}
    assert known == {kernel.__name__ for kernel in SIGNATURES}
    print("compiled", len(SIGNATURES))
