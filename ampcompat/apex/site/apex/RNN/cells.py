"""Layers of one kind."""

from ampcompat.apex.recurrent import mLSTMRNNCell
