"""The recurrent networks of ``apex.RNN``, which keep their hidden state from call to call."""

from .cells import GRU, LSTM, ReLU, RNNCell, Tanh, mLSTM, mLSTMRNNCell
from .stacks import bidirectionalRNN, stackedRNN
