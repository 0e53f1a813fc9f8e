"""Hooks on the registration of params and submodules, which torch has from 2.0 on."""

import sys

import torch

_module = sys.modules[torch.nn.Module.__module__]
_NAMES = ("register_module_module_registration_hook", "register_module_parameter_registration_hook")


def have_hooks():
    """Return whether torch calls hooks when a module gets a param or a submodule."""
    return all([hasattr(_module, name) for name in _NAMES])


def watch(changed, patches):
    """Call ``changed()`` when any module gets a param or a submodule, before it has it; undone by ``patches``."""

    def registered(module, name, value):
        changed()

    for name in _NAMES if have_hooks() else ():
        patches.register(getattr(_module, name), registered)
