"""``FastLayerNorm``, the one-dimensional layer norm of ``apex.contrib``.

Apex supports about sixty sizes; this implementation supports any size.
"""

import torch

from ..normalization import fused_layer_norm_affine


class FastLayerNorm(torch.nn.Module):
    """Layer norm over the last dimension, in the dtype of the input.

    Args:
        hidden_size: the size of that dimension.
        eps: added to the variance.
        memory_efficient: accepted, no effect: torch decides what is saved for backward.
    """

    def __init__(self, hidden_size, eps=1e-5, memory_efficient=False):
        super().__init__()
        self.epsilon = eps
        self.memory_efficient = memory_efficient
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size))

    def reset_parameters(self):
        """Set the weight to 1 and the bias to 0."""
        torch.nn.init.ones_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x):
        """Return the layer norm of ``x``."""
        return fused_layer_norm_affine(x, self.weight, self.bias, self.weight.shape, self.epsilon)
