"""Layer norm and RMS norm."""

from ampcompat.apex.normalization import FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm

from . import fused_layer_norm
