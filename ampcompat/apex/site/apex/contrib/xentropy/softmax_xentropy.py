"""Cross entropy with smoothed labels."""

from ampcompat.apex.contrib import SoftmaxCrossEntropyLoss
