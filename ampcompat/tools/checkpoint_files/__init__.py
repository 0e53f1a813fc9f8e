"""``python -m ampcompat checkpoint``: what a checkpoint file holds, and the conversion to another layout."""

from .contents import Contents
from .conversion import LAYOUTS, convert
from .files import read, write

__all__ = ["LAYOUTS", "Contents", "convert", "read", "write"]
