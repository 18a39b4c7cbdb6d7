"""The names under which the parts of a step are marked for a profiler, in the order of a step. Marking costs a microsecond when nobody looks."""

WAIT = "step: wait for data"
PREPARE = "step: prepare batch"
LOSS = "step: forward and loss"
FORWARD = "step: forward"  # within LOSS
BACKWARD = "step: backward"
OPTIMISER = "step: optimiser"
AVERAGE = "step: average"
