"""Mixed precision by hand."""

from ampcompat.apex.fp16_utils import *

from . import fp16_optimizer, fp16util, loss_scaler
