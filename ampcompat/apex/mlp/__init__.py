"""``apex.mlp`` and ``apex.fused_dense``: stacks of linear layers under Apex's names.

Apex ran a whole stack in half under its casts; here each layer follows the op table, with the same result dtype.
"""

from .fused_dense import (
    FusedDense,
    FusedDenseGeluDense,
    dense_no_bias_function,
    fused_dense_function,
    fused_dense_gelu_dense_function,
)
from .perceptron import MLP, MlpFunction, mlp_function
