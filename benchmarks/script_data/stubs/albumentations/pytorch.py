"""Stand-in, see the package."""

from . import Compose as ToTensorV2

__all__ = ["ToTensorV2"]
