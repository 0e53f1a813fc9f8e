"""The recurrent networks of ``apex.RNN``, which keep their hidden state between calls.

A layer keeps its hidden state, with its graph, between calls; ``reset_hidden`` and ``detach_hidden`` end that. Copies
and pickles of a layer contain the values without the graph. In a stack, each layer processes the whole sequence before
the next one does; the result is the same as step by step.

The formulas (x: the input's contribution to a step, h: the hidden state's; gates in torch's order):

    ReLU, Tanh   h = relu(x + h), tanh(x + h)
    LSTM         c = sigmoid(f) * c + sigmoid(i) * tanh(g); h = sigmoid(o) * tanh(c)       Hochreiter, Schmidhuber 1997
    GRU          n = tanh(x_n + sigmoid(r) * h_n); h = (1 - sigmoid(z)) * n + sigmoid(z) * h        Cho et al. 2014
    mLSTM        an LSTM with (W_mi x) * (W_mh h) in place of h                                 Krause et al. 2016
"""

import math

import torch

from ..errors import AmpTypeError, AmpValueError


def _lstm(x, h, hidden):
    gate_in, gate_forget, new, gate_out = (x + h).chunk(4, 1)
    state = torch.sigmoid(gate_forget) * hidden[1] + torch.sigmoid(gate_in) * torch.tanh(new)
    return torch.sigmoid(gate_out) * torch.tanh(state), state


def _gru(x, h, hidden):
    x_reset, x_update, x_new = x.chunk(3, 1)
    h_reset, h_update, h_new = h.chunk(3, 1)
    update = torch.sigmoid(x_update + h_update)
    new = torch.tanh(x_new + torch.sigmoid(x_reset + h_reset) * h_new)
    return (new + update * (hidden[0] - new),)


def _relu(x, h, hidden):
    return (torch.relu(x + h),)


def _tanh(x, h, hidden):
    return (torch.tanh(x + h),)


class RNNCell(torch.nn.Module):
    """One recurrent layer.

    Args:
        gate_multiplier: the number of gates.
        input_size, hidden_size: numbers of features.
        cell: ``cell(x, h, hidden) -> new hidden states``, the first of which is the output; ``x`` and ``h`` are the
            input's and the last output's contribution to the gates.
        n_hidden_states: the number of hidden states.
        bias: whether there are biases.
        output_size: the number of output features, if the output is projected.
    """

    def __init__(self, gate_multiplier, input_size, hidden_size, cell, n_hidden_states=2, bias=False, output_size=None):
        super().__init__()
        self.gate_multiplier, self.gate_size = gate_multiplier, gate_multiplier * hidden_size
        self.input_size, self.hidden_size = input_size, hidden_size
        self.output_size = hidden_size if output_size is None else output_size
        self.cell, self.n_hidden_states, self.bias = cell, n_hidden_states, bias
        self._add_param("w_ih", self.gate_size, input_size)
        self._add_param("w_hh", self.gate_size, self.output_size)
        if self.output_size != hidden_size:
            self._add_param("w_ho", self.output_size, hidden_size)
        self.b_ih = self.b_hh = None
        if bias:
            self._add_param("b_ih", self.gate_size)
            self._add_param("b_hh", self.gate_size)
        self.hidden = [None] * n_hidden_states
        self.reset_parameters()

    def _add_param(self, name, *shape):
        vars(self).pop(name, None)
        self.register_parameter(name, torch.nn.Parameter(torch.empty(shape)))

    def __getstate__(self):
        hidden = [None if each is None else each.detach() for each in self.hidden]
        return dict(vars(self), hidden=hidden)

    def new_like(self, new_input_size=None):
        """Return another layer of this kind, for inputs of another size."""
        size = self.input_size if new_input_size is None else new_input_size
        options = (self.cell, self.n_hidden_states, self.bias, self.output_size)
        return type(self)(self.gate_multiplier, size, self.hidden_size, *options)

    def reset_parameters(self, gain=1):
        """Initialize the params uniformly, as torch's recurrent layers do."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for param in self.parameters():
            torch.nn.init.uniform_(param, -bound, bound)

    def init_hidden(self, bsz):
        """Set the hidden state to 0 unless there is one of this batch size."""
        for index, state in enumerate(self.hidden):
            if state is None or state.shape[0] != bsz:
                size = self.hidden_size if index else self.output_size
                self.hidden[index] = torch.zeros(bsz, size, dtype=self.w_ih.dtype, device=self.w_ih.device)

    def reset_hidden(self, bsz):
        """Set the hidden state to 0."""
        self.hidden = [None] * self.n_hidden_states
        self.init_hidden(bsz)

    def detach_hidden(self):
        """Detach the hidden state from its graph.

        Raises:
            RuntimeError: there is no hidden state yet.
        """
        if any(state is None for state in self.hidden):
            raise RuntimeError("detach_hidden: there is no hidden state before the first call or init_hidden.")
        self.hidden = [state.detach() for state in self.hidden]

    def forward(self, input):
        """Return the hidden states after one step, the output first; ``input`` is of shape (batch, features)."""
        return self.run_sequence(input.unsqueeze(0))[0]

    def run_sequence(self, inputs, reverse=False):
        """Return the hidden states after each step over ``inputs``, which are of shape (steps, batch, features)."""
        self.init_hidden(inputs.shape[1])
        projected = [each.unbind() for each in self._project_inputs(inputs)]  # does not depend on the hidden state
        outputs = [None] * len(inputs)
        for step in reversed(range(len(inputs))) if reverse else range(len(inputs)):
            hidden = self.cell(*self._gate_inputs(*[each[step] for each in projected]), self.hidden)
            if self.output_size != self.hidden_size:
                hidden = (torch.nn.functional.linear(hidden[0], self.w_ho),) + tuple(hidden[1:])
            self.hidden = list(hidden)
            outputs[step] = tuple(hidden)
        return outputs

    def _project_inputs(self, inputs):
        return (torch.nn.functional.linear(inputs, self.w_ih, self.b_ih),)

    def _gate_inputs(self, x):
        return x, torch.nn.functional.linear(self.hidden[0], self.w_hh, self.b_hh)


class mLSTMRNNCell(RNNCell):
    """One layer of a multiplicative LSTM; arguments as in ``RNNCell``."""

    def __init__(self, input_size, hidden_size, bias=False, output_size=None):
        super().__init__(4, input_size, hidden_size, _lstm, 2, bias, output_size)
        self._add_param("w_mih", self.output_size, input_size)
        self._add_param("w_mhh", self.output_size, self.output_size)
        self.reset_parameters()

    def new_like(self, new_input_size=None):
        """Return another layer of this kind, for inputs of another size."""
        size = self.input_size if new_input_size is None else new_input_size
        return type(self)(size, self.hidden_size, self.bias, self.output_size)

    def _project_inputs(self, inputs):
        return torch.nn.functional.linear(inputs, self.w_ih, self.b_ih), torch.nn.functional.linear(inputs, self.w_mih)

    def _gate_inputs(self, x, multiplier):
        between = multiplier * torch.nn.functional.linear(self.hidden[0], self.w_mhh)
        return x, torch.nn.functional.linear(between, self.w_hh, self.b_hh)


def _layers_of(gates, cell, states):
    """Return a function that creates layers of one kind."""

    def make(input_size, hidden_size, bias, output_size):
        if cell is _gru and output_size not in (None, hidden_size):
            raise AmpValueError("GRU mixes its output into its state: output_size must be hidden_size, or None.")
        return RNNCell(gates, input_size, hidden_size, cell, states, bias, output_size)

    return make


def _network_function(name, doc, make_layer):
    """Return the function that creates networks of one kind."""

    def make(
        input_size,
        hidden_size,
        num_layers,
        bias=True,
        batch_first=False,
        dropout=0,
        bidirectional=False,
        output_size=None,
    ):
        layer = make_layer(input_size, hidden_size, bias, output_size)
        network_class = bidirectionalRNN if bidirectional else stackedRNN
        return network_class(layer, num_layers, dropout=dropout, batch_first=batch_first)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = doc + "; arguments as in ``torch.nn.LSTM``, and a size to which outputs are projected."
    return make


LSTM = _network_function("LSTM", "Return an LSTM", _layers_of(4, _lstm, 2))
GRU = _network_function("GRU", "Return a GRU", _layers_of(3, _gru, 1))
ReLU = _network_function("ReLU", "Return a plain recurrent network with ReLU", _layers_of(1, _relu, 1))
Tanh = _network_function("Tanh", "Return a plain recurrent network with tanh", _layers_of(1, _tanh, 1))
mLSTM = _network_function("mLSTM", "Return a multiplicative LSTM", mLSTMRNNCell)


class _RecurrentNetwork(torch.nn.Module):
    """Base class of both, with a list ``rnns`` of layers that keep hidden states."""

    def reset_parameters(self):
        """Initialize the params again."""
        for rnn in self.rnns:
            rnn.reset_parameters()

    def init_hidden(self, bsz):
        """Set the hidden states to 0 unless there are some of this batch size."""
        for rnn in self.rnns:
            rnn.init_hidden(bsz)

    def reset_hidden(self, bsz):
        """Set the hidden states to 0."""
        for rnn in self.rnns:
            rnn.reset_hidden(bsz)

    def detach_hidden(self):
        """Detach the hidden states from their graphs."""
        for rnn in self.rnns:
            rnn.detach_hidden()


class stackedRNN(_RecurrentNetwork):
    """Layers that each get the outputs of the one below.

    Args:
        inputRNN: the first layer, a template for the others; or a list of all layers.
        num_layers: the number of layers.
        dropout: the probability with which outputs are dropped between layers, in training.
        batch_first: inputs and outputs are of shape (batch, steps, features) instead of (steps, batch, features).
    """

    def __init__(self, inputRNN, num_layers=1, dropout=0, batch_first=False):
        super().__init__()
        self.dropout, self.batch_first = dropout, batch_first
        if isinstance(inputRNN, torch.nn.Module):
            layers = [inputRNN] + [inputRNN.new_like(inputRNN.output_size) for _ in range(num_layers - 1)]
        elif isinstance(inputRNN, (list, tuple)) and len(inputRNN) == num_layers:
            layers = inputRNN
        else:
            raise AmpTypeError(f"stackedRNN expected a layer, or a list of {num_layers} layers, but got {inputRNN!r}.")
        self.nLayers = len(layers)
        self.rnns = torch.nn.ModuleList(layers)

    def forward(self, input, collect_hidden=False, reverse=False):
        """Return (outputs, hidden states), each hidden state as a tensor of shape (layers, batch, features).

        Args:
            input: of shape (steps, batch, features).
            collect_hidden: return a list of such tensors for each hidden state instead, one per step.
            reverse: go through the steps from the last to the first.
        """
        outputs = input.transpose(0, 1) if self.batch_first else input
        layers = []  # for each layer, for each step, its hidden states
        for index, rnn in enumerate(self.rnns):
            if index and self.dropout:
                outputs = torch.nn.functional.dropout(outputs, self.dropout, self.training)
            layers.append(rnn.run_sequence(outputs, reverse))
            outputs = torch.stack([states[0] for states in layers[-1]])
        kept = range(len(outputs)) if collect_hidden else [0 if reverse else len(outputs) - 1]
        hidden = [
            [torch.stack([layer[step][state] for layer in layers]) for step in kept]
            for state in range(len(layers[0][0]))
        ]
        outputs = outputs.transpose(0, 1) if self.batch_first else outputs
        return outputs, hidden if collect_hidden else [steps[0] for steps in hidden]


class bidirectionalRNN(_RecurrentNetwork):
    """Two networks, one per direction; outputs and hidden states are concatenated. Arguments as for ``stackedRNN``."""

    def __init__(self, inputRNN, num_layers=1, dropout=0, batch_first=False):
        super().__init__()
        self.dropout = dropout
        self.fwd = stackedRNN(inputRNN, num_layers, dropout, batch_first)
        self.bckwrd = stackedRNN(inputRNN.new_like(), num_layers, dropout, batch_first)
        self.rnns = torch.nn.ModuleList([self.fwd, self.bckwrd])

    def forward(self, input, collect_hidden=False):
        """Return the same as ``stackedRNN``, with twice the features."""
        outputs, hidden = self.fwd(input, collect_hidden)
        others, other_hidden = self.bckwrd(input, collect_hidden, reverse=True)
        sides = [
            [torch.cat(pair, -1) for pair in zip(*both)] if collect_hidden else torch.cat(both, -1)
            for both in zip(hidden, other_hidden)
        ]
        return torch.cat([outputs, others], -1), tuple(sides)
