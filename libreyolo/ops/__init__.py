"""Pure tensor functions: boxes, IoU, NMS, assignment."""
