"""The loss scaler."""

from ampcompat.parts.scaler import LossScaler
