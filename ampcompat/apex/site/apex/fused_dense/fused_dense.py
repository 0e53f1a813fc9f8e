"""Linear layers, one or two with a GELU between."""

from ampcompat.apex.mlp import (
    FusedDense,
    FusedDenseGeluDense,
    dense_no_bias_function,
    fused_dense_function,
    fused_dense_gelu_dense_function,
)
