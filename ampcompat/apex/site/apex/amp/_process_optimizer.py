"""The function called by clients that replace ``optimizer._post_amp_backward``."""

from ampcompat.apex.process_optimizer import post_backward_models_are_masters
