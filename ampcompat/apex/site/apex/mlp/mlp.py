"""A stack of linear layers."""

from ampcompat.apex.mlp import MLP, mlp_function, MlpFunction
