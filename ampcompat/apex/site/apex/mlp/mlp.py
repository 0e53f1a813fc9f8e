"""A stack of linear layers."""

from ampcompat.apex.mlp import MLP, MlpFunction, mlp_function
