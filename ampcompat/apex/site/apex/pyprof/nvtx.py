"""The marks for NVIDIA's profilers, which are not set here."""

from ampcompat.apex.pyprof import init, wrap
