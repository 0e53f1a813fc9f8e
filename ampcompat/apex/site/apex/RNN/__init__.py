"""Recurrent networks."""

from ampcompat.apex.recurrent import GRU, LSTM, ReLU, Tanh, mLSTM

from . import RNNBackend, cells, models
