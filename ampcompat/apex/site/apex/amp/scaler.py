"""The loss scaler."""

from ampcompat.engine.loss_scaling.loss_scaler import LossScaler
