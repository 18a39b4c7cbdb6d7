"""`compile=true|mode`: the network through torch.compile; what does not compile stays eager."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

log = logging.getLogger(__name__)

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@contextmanager
def compiled(net: nn.Module, wish: bool | str) -> Iterator[None]:
    """Compile `net` in place for the block, where wished: its parameters, names and type stay, and nobody who holds it needs to know.

    wish: false; true for torch's default mode; or a mode of MODES. Code that torch can't compile runs eagerly, and so do layers whose class says
    `COMPILES = False`. The log says at the end how much was compiled, once.
    """
    if wish is False:
        yield
        return
    import torch._dynamo as dynamo  # slow to import, and only who compiles needs it

    mode = None if wish is True or wish == "default" else str(wish)
    suppressed, before = dynamo.config.suppress_errors, _counts(dynamo)
    dynamo.config.suppress_errors = True
    log.info(
        "compile=%s: the network is compiled when it is first run (minutes, if it has hundreds of layers); what does not compile stays eager.",
        str(wish).lower(),
    )
    # Here and not where those layers are defined: that would import the compiler in every process, for seconds.
    eager = [layer for layer in net.modules() if not getattr(layer, "COMPILES", True)]
    for layer in eager:
        layer.forward = dynamo.disable(layer.forward)
    try:
        net.compile(mode=mode)
        yield
    finally:
        for layer in eager:
            del layer.forward
        net._compiled_call_impl = None  # how `nn.Module.compile` is undone
        dynamo.config.suppress_errors = suppressed
        graphs, breaks = (now - then for now, then in zip(_counts(dynamo), before, strict=True))
        log.info("compile: %d graph(s) of the network were compiled, with %d break(s) between them.", graphs, breaks)


def _counts(dynamo: Any) -> tuple[int, int]:
    counters = dynamo.utils.counters
    return int(counters["stats"]["unique_graphs"]), int(sum(counters["graph_break"].values()))
