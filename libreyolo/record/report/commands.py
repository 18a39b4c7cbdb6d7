"""Commands that work as they are printed."""

from __future__ import annotations

import shlex

from libreyolo.record import shell
from libreyolo.record.report.facts import RunFacts


def commands(facts: RunFacts) -> list[tuple[str, str]]:
    """Return (what it does, command) for what can be done with a run: as it was started, again, further, judged."""
    found = []
    if facts.lives and facts.lives[-1].get("command"):
        found.append(("As it was started", shlex.join(str(word) for word in facts.lives[-1]["command"])))
    config, folder = facts.run_dir / "train_config.yaml", facts.run_dir / "weights"
    if facts.config and shell.TRAIN_PY.exists():
        found.append(("Run it again", shell.train(shell.override("cfg", config))))
    names = {path.name for path in facts.checkpoints}
    if "last.pt" in names:
        planned = int(facts.config.get("epochs") or 0)
        is_done = int(facts.status.get("epoch") or 0) >= planned
        found.append(("Go on from it", shell.go_on(facts.run_dir, 2 * planned if planned and is_done else None)))
    weights = next((folder / name for name in ("best.pt", "last.pt") if name in names), None)
    if weights is not None:
        found.append(("Validate it", shell.module("val", weights)))
    return found
