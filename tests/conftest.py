"""What must be settled before any test imports torch."""

import os

# Without a GPU the Triton kernels run in Triton's interpreter, which is chosen when triton is first imported (torch.compile imports it too).
if not os.path.exists("/dev/nvidiactl"):  # noqa: PTH110 - not even pathlib is needed for this
    os.environ.setdefault("TRITON_INTERPRET", "1")
