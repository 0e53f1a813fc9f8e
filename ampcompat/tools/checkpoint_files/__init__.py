"""``ampcompat checkpoint``: the contents of a checkpoint file, and its conversion to another layout."""

from .contents import Contents
from .layout_conversion import LAYOUTS, convert
from .load_and_save import read, write

__all__ = ["LAYOUTS", "Contents", "convert", "read", "write"]
