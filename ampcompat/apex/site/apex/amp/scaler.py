"""The loss scaler."""

from ampcompat.apex.gradient_functions import axpby_check_overflow_python, scale_check_overflow_python
from ampcompat.engine.loss_scaling.loss_scaler import LossScaler
