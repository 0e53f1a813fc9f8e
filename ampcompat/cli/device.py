"""``--device``: run a script that was written for CUDA on the device at hand.

Owns: the option, for every command that starts scripts, and when it is refused.
Must not touch: what is redirected; that is the room ``devices``.
The surprise: nothing is redirected in this process. The option becomes environment variables, so that the processes
started from here redirect, each when it imports torch.
"""

import os
import sys

from ..devices import startup


def add_option(parser):
    """Add ``--device`` to a command's parser."""
    parser.add_argument(
        "--device",
        choices=startup.DEVICES,
        metavar="DEVICE",
        help="cpu, mps or xpu: what the script sends to CUDA goes there, and torch.cuda answers for it",
    )


def put_in_force(parser, device):
    """Set the environment so that Pythons started from now on redirect CUDA to ``device``; None changes nothing."""
    if device is None:
        return
    if sys.flags.no_site:
        parser.error("Python was started with -S, and --device needs the module site; leave out one of them.")
    if device != "cpu":  # that is everywhere, and asking torch takes a second
        from ..tables import torch_facts

        if device not in torch_facts.available_devices():
            there = ", ".join(torch_facts.available_devices())
            parser.error("--device {}: this torch finds no such device here, only {}.".format(device, there))
    os.environ.update(startup.environment(device))
