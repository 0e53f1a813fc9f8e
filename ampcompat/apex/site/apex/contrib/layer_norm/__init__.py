"""Layer norm over the last dimension."""

from ampcompat.apex.contrib import FastLayerNorm
