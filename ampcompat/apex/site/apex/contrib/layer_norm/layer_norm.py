"""Layer norm over the last dimension."""

from ampcompat.apex.contrib.layer_norm import FastLayerNorm
