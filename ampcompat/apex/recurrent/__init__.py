"""The recurrent networks of ``apex.RNN``, which keep their hidden state from call to call."""

from .cells import GRU, LSTM, mLSTM, mLSTMRNNCell, ReLU, RNNCell, Tanh
from .stacks import bidirectionalRNN, stackedRNN

__all__ = ["GRU", "LSTM", "RNNCell", "ReLU", "Tanh", "bidirectionalRNN", "mLSTM", "mLSTMRNNCell", "stackedRNN"]
