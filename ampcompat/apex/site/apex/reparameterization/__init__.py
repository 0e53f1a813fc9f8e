"""Weight normalization."""

from ampcompat.apex.reparameterization import apply_weight_norm, remove_weight_norm
