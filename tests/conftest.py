"""What must be settled before any test imports torch."""

import os
import signal

# Without a GPU the Triton kernels run in Triton's interpreter, which is chosen when triton is first imported (torch.compile imports it too).
if not os.path.exists("/dev/nvidiactl"):  # noqa: PTH110 - not even pathlib is needed for this
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell starts what it puts in the background with Ctrl-C ignored, which the programs of the tests would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
