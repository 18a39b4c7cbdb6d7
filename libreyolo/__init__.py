"""LibreYOLO Train: from libreyolo import LibreYOLO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libreyolo.api import LibreYOLO
    from libreyolo.assembly import check

__all__ = ["LibreYOLO", "check"]


def __getattr__(name: str) -> Any:
    # Lazy: `import libreyolo` must not pay for torch (the command line's help, Hydra's composition).
    if name == "LibreYOLO":
        from libreyolo.api import LibreYOLO

        return LibreYOLO
    if name == "check":
        from libreyolo.assembly import check

        return check
    raise AttributeError(f"module 'libreyolo' has no attribute {name!r}")
