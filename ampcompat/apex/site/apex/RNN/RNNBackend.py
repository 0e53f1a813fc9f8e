"""Recurrent layers, and networks made of them."""

from ampcompat.apex.recurrent import RNNCell, bidirectionalRNN, stackedRNN
