"""Cross entropy with smoothed labels."""

from ampcompat.apex.contrib.xentropy import SoftmaxCrossEntropyLoss
