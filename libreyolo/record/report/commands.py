"""Commands that work as they are printed."""

from __future__ import annotations

import shlex

from libreyolo.record.report.facts import RunFacts
from libreyolo.record.summary import override


def commands(facts: RunFacts) -> list[tuple[str, str]]:
    """Return (what it does, command) for what can be done with a run: as it was started, again, further, judged."""
    found = []
    if facts.lives and facts.lives[-1].get("command"):
        found.append(("As it was started", shlex.join(str(word) for word in facts.lives[-1]["command"])))
    config, folder = facts.run_dir / "train_config.yaml", facts.run_dir / "weights"
    if facts.config:
        found.append(("Run it again", f"python train.py {shlex.quote(override('cfg', config))}"))
    names = {path.name for path in facts.checkpoints}
    if "last.pt" in names:
        planned = int(facts.config.get("epochs") or 0)
        more = f" epochs={2 * planned}" if planned and int(facts.status.get("epoch") or 0) >= planned else ""
        found.append(("Go on from it", f"python train.py {shlex.quote(override('resume', facts.run_dir))}{more}"))
    weights = next((folder / name for name in ("best.pt", "last.pt") if name in names), None)
    if weights is not None:
        found.append(("Validate it", f"python -m libreyolo val {shlex.quote(str(weights))}"))
    return found
