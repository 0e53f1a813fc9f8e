"""Recurrent networks."""

from ampcompat.apex.recurrent import GRU, LSTM, ReLU, RNNCell, Tanh, bidirectionalRNN, mLSTM, mLSTMRNNCell, stackedRNN
