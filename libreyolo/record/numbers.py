"""How numbers, sizes, times and settings are written for people."""

from __future__ import annotations

import math
from typing import Any

NONE = "–"


def number(value: Any) -> str:
    """Return a number with four digits that mean something ("0.7014", "12.34", "1.2e-05"); a dash for None and what is not finite."""
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return NONE if value is None else str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6 if math.isfinite(value) else False):
        return str(int(value))
    if not math.isfinite(value):
        return NONE
    return f"{value:.4f}" if 0.01 <= abs(value) < 1 else f"{value:.4g}"


def size(num_bytes: int) -> str:
    """Return "12.3 MB"."""
    amount = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def setting(value: Any) -> str:
    """Return a value of the configuration as it is typed on a command line: null, true, [0,1]."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(setting(item) for item in value)}]"
    return str(value)
