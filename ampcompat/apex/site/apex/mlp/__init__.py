"""A stack of linear layers."""

from .mlp import MLP, MlpFunction, mlp_function
