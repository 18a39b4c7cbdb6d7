"""Pure functions on tensors and numbers: boxes, IoU, NMS, assignment, keyed randomness."""
