"""The loss scalers for hand-written training loops."""

from ampcompat.apex.fp16_utils.fp16util import DynamicLossScaler, LossScaler, to_python_float
