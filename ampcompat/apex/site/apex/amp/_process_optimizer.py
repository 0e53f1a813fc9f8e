"""The function called by clients that replace ``optimizer._post_amp_backward``."""

from ampcompat.apex.gradient_functions import post_backward_models_are_masters
