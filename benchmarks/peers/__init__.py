"""Ours and the peers, measured side by side on one machine: `python -m benchmarks.peers` (see __main__.py)."""
