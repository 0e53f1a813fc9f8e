"""Recurrent networks."""

from ampcompat.apex.recurrent import GRU, LSTM, mLSTM, ReLU, Tanh

from . import RNNBackend, cells, models
