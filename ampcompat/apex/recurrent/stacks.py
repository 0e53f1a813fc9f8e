"""Stacked and bidirectional recurrent layers.

Each layer processes the whole sequence before the next one does; the result is the same as step by step.
"""

import torch

from ...errors import AmpTypeError


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
