"""The editable op lists of O1."""

from . import functional_overrides, tensor_overrides, torch_overrides
