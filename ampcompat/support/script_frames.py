"""The line of the user's script that is running: the innermost frame that is neither torch's nor ampcompat's."""

import contextlib
import os
import sys

import torch

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARIES = (_OWN, _TORCH, contextlib.__file__)

#: Folders of ampcompat and torch whose operations are not part of a model's computation: unscaling, masters,
#: optimizers.
BOOKKEEPING = tuple(
    [
        os.path.join(_OWN, "engine", name) + os.sep
        for name in ("loss_scaling", "master_weights", "patched_optimizers", "session")
    ]
    + [os.path.join(_TORCH, "optim") + os.sep]
)
_OBSERVERS = tuple(
    [
        os.path.join(_OWN, "tools", name)
        for name in ("diagnostics", "memory", "step_statistics" + os.sep + "tensor_stat")
    ]
)


def is_library(path):
    """Return whether a file of source code is torch's or ampcompat's, or ``contextlib``."""
    return path.startswith(_LIBRARIES)


def script_line():
    """Return ``(file, line)`` of the script's innermost frame, or of the outermost frame if all belong to libraries."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def is_bookkeeping():
    """Return whether the code that called the caller is not part of a model's computation.

    This is ``BOOKKEEPING`` or an observer, directly or through other code of ampcompat.
    """
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((_OWN,) + BOOKKEEPING[-1:]):
        if frame.f_code.co_filename.startswith(BOOKKEEPING + _OBSERVERS):
            return True
        frame = frame.f_back
    return False
