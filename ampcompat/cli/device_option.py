"""The option ``--device``: run a script that was written for CUDA on another device.

Nothing is redirected in this process, but in each process that is started with such a ``ChildEnvironment``, when it
imports torch.
"""

import sys

#: The choices of ``run --device``.
DEVICES = ("cpu", "mps", "xpu")


def add_option(parser):
    """Add ``--device`` to a command's parser."""
    parser.add_argument(
        "--device",
        choices=DEVICES,
        metavar="DEVICE",
        help="cpu, mps or xpu: run a script written for CUDA on this device",
    )


def check_option(parser, device):
    """Exit with one line if CUDA cannot be redirected to ``device``; None is not a device."""
    if device is not None and sys.flags.no_site:
        parser.error("Python was started with -S, and --device needs the module site; leave out one of them.")
    if device not in (None, "cpu"):  # the CPU is always available; importing torch takes a second
        from ..support.torch_compat import features

        if device not in features.available_devices():
            available = ", ".join(features.available_devices())
            parser.error(f"--device {device}: not available to this torch, only {available}.")
