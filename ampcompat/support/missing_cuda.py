"""Print how to run a script written for CUDA that failed because this machine has no CUDA device.

Torch is imported only if the script has imported it.
"""

import os
import re
import shlex
import sys
import traceback

from .child_environment import ChildEnvironment

_ADVICE = "ampcompat: this machine has no CUDA device; try: "
_MESSAGES = re.compile(
    "not compiled with CUDA|No CUDA GPUs|no NVIDIA driver|on a CUDA device but|doesn't have NCCL|no GPUs found"
    "|module 'torch._C' has no attribute '_cuda_",
    re.IGNORECASE,
)


def command_for_cpu(command, arguments):
    """Return the command that runs the script on the CPU.

    Args:
        command: "run" or "ab".
        arguments: those of the command, without ``--device``.
    """
    return " ".join(["ampcompat", command, "--device", "cpu"] + [shlex.quote(each) for each in arguments])


def advice_after(traceback_text, command, arguments):
    """Like ``advice``, for an error in another process without CUDA, given its traceback.

    Args:
        traceback_text: the traceback, or None.
        command, arguments: as for ``command_for_cpu``.
    """
    files = re.findall('File "([^"]+)"', traceback_text or "")
    is_of_cuda = bool(files) and os.path.join("torch", "cuda", "") in files[-1]
    if not is_of_cuda and not _MESSAGES.search(traceback_text or ""):
        return None
    return _ADVICE + command_for_cpu(command, arguments)


def advice(error):
    """Return a line that says how to run the script on the CPU; None if missing CUDA is not the cause of ``error``."""
    torch, command = sys.modules.get("torch"), ChildEnvironment.from_env().command_for_cpu
    if command is None or not hasattr(torch, "cuda") or not _is_of_cuda(error) or torch.cuda.is_available():
        return None
    return _ADVICE + command


def _is_of_cuda(error):
    """Return whether an error was raised in ``torch.cuda``, or its message says that there is no CUDA."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = frames[-1].f_globals.get("__name__") if frames else None
    return f"{module}.".startswith("torch.cuda.") or bool(_MESSAGES.search(str(error)))


def advise_at_exit():
    """Print ``advice`` below the traceback of an error that terminates this process."""
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)


class _Hook:
    """A ``sys.excepthook`` that calls the previous one and then prints the advice."""

    def __init__(self, before):
        self._before = before

    def __call__(self, kind, error, trace):
        self._before(kind, error, trace)
        line = advice(error)
        if line is not None:
            print(line, file=sys.stderr)
