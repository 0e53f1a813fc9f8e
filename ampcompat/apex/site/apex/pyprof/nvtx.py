"""NVTX markers, which do nothing here."""

from ampcompat.apex.pyprof import init, wrap
