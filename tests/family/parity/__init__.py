"""Numbers of LibreYOLO 1.6.0 (MIT), recorded by running it, that our families must reproduce.

fill.py sets every weight, input and target by rule, so that no weights are stored. compare.py measures. data/ holds, per family, the names
and shapes of the published weights (keys-*.tsv.gz) and the recorded numbers (*.json). record_<family>.py says how the numbers were made.

Recorded and compared in float64: these networks are so deep that float32 rounding, which differs between processors, grows to 3e-4 of the
largest value (and to 4e-3 of a gradient where a maximum pool changes its mind), while two float64 runs agree to 1e-9.
"""
