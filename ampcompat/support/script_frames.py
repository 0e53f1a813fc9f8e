"""The line of the user's script that is running: the innermost frame that is neither torch's nor ampcompat's."""

import contextlib
import os
import sys

import torch

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARIES = (_OWN, _TORCH, contextlib.__file__)

_OPTIMIZERS = os.path.dirname(torch.optim.__file__) + os.sep


def is_library(path):
    """Return whether a file of source code is torch's or ampcompat's, or ``contextlib``."""
    return path.startswith(_LIBRARIES)


def script_line():
    """Return ``(file, line)`` of the script's innermost frame, or of the outermost frame if all belong to libraries."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def is_marked(frame):
    """Return whether the code of a frame is not part of a model's computation: unscaling, masters, observers, …

    This is torch's optimizers, and modules of ampcompat that say ``IS_BOOKKEEPING = True``, or whose package does.
    """
    if frame.f_code.co_filename.startswith(_OPTIMIZERS):
        return True
    found = frame.f_globals
    package = sys.modules.get(found.get("__package__"))
    return found.get("IS_BOOKKEEPING", getattr(package, "IS_BOOKKEEPING", False))


def is_bookkeeping(skipped=0):
    """Return whether the code that called the caller is marked, directly or through other code of ampcompat.

    Args:
        skipped: how many calls lie between that code and the caller.
    """
    frame = sys._getframe(2 + skipped)
    while frame is not None and frame.f_code.co_filename.startswith((_OWN, _OPTIMIZERS)):
        if is_marked(frame):
            return True
        frame = frame.f_back
    return False
