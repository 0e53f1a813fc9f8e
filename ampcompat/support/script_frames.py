"""Which line of the user's script runs now: the innermost frame that is neither torch's nor ampcompat's."""

import contextlib
import os
import sys

import torch

_LIBRARIES = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    contextlib.__file__,
)


def is_library(path):
    """Return whether a file of source code is torch's or ampcompat's, or ``contextlib``."""
    return path.startswith(_LIBRARIES)


def script_line():
    """Return ``(file, line)`` of the script's innermost frame, or of the outermost frame if all are libraries'."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
