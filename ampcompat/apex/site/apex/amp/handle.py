"""The contexts."""

from ampcompat.amp import disable_casts, scale_loss
