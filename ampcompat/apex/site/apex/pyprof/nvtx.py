"""NVTX markers, which do nothing here."""

from ampcompat.apex.package_names import init, wrap
