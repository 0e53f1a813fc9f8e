"""The recurrent networks of ``apex.RNN``, which keep their hidden state between calls."""

from .cells import GRU, LSTM, ReLU, RNNCell, Tanh, mLSTM, mLSTMRNNCell
from .stacks import bidirectionalRNN, stackedRNN
