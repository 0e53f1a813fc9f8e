"""The benchmarks as modules, for tests of what they measure."""

import importlib
import os
import sys

from .processes import ROOT

FOLDER = os.path.join(ROOT, "benchmarks")


def load(name):
    """Return ``benchmarks/NAME.py`` as a module."""
    sys.path.insert(0, FOLDER)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(FOLDER)
