"""The loss scaler."""

from ampcompat.loss_scaling.scaler import LossScaler
