"""``python -m ampcompat checkpoint``: what a checkpoint file holds, and the conversion to another layout."""

from .contents import Contents
from .layout_conversion import LAYOUTS, convert
from .load_and_save import read, write

__all__ = ["LAYOUTS", "Contents", "convert", "read", "write"]
