"""The loss scalers for hand-written training loops."""

from ampcompat.apex.fp16_utils.fp16util import to_python_float
from ampcompat.apex.fp16_utils.loss_scaler import DynamicLossScaler, LossScaler
