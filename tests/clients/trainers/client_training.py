"""One small training and its expected result, for every client: a network, its data, and Apex's own loop over them.

Clients must agree with that loop bit by bit. The network records the dtypes in which it computes, to detect a client
that does not use amp.
"""

import contextlib

import torch
from helpers.networks import weights_of

import ampcompat
from ampcompat import amp

#: Passes over the batches; a training is interrupted after the first.
EPOCHS, BATCHES = 2, 4

#: The levels of Apex, for every client. O0 shows that the client's loop is equivalent to Apex's.
LEVELS = ("O0", "O1", "O2", "O3")


class Net(torch.nn.Module):
    """A small classifier with a batch norm, which records the dtypes that it computes in."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 3)
        self.seen = []

    def forward(self, x):
        """Return the logits."""
        hidden = self.body(x)
        self.seen.append(hidden.dtype)
        return self.head(torch.relu(self.norm(hidden)))


def batches():
    """Return the batches of an epoch as (inputs, class indices)."""
    generator = torch.Generator().manual_seed(1)
    return [pair_of(generator) for _ in range(BATCHES)]


def pair_of(generator):
    """Return one batch."""
    return torch.randn(4, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator)


def optimizer_of(model):
    """Return an optimizer with state that a checkpoint must hold."""
    return torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)


def loss_of(output, target):
    """Return the loss that all clients train on."""
    return torch.nn.functional.cross_entropy(output, target)


class LossNet(torch.nn.Module):
    """The same, for clients that want the loss from the model: cast with it where weights are half."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x, y):
        """Return the loss."""
        return loss_of(self.net(x), y)


def expected(level, clip=None, loss_inside=False, around=contextlib.nullcontext):
    """Return (weights, dtypes noted) after the loop of Apex's documentation, and leave no session open.

    Args:
        clip: the gradients' norm, if they are clipped.
        loss_inside: the model given to amp computes the loss as well.
        around: returns a context for each forward pass.
    """
    whole = LossNet()
    model = whole.net
    seen_by_amp, optimizer = amp.initialize(
        whole if loss_inside else model, optimizer_of(model), opt_level=level, verbosity=0
    )
    for x, y in batches() * EPOCHS:
        optimizer.zero_grad()
        with around():
            loss = seen_by_amp(x, y) if loss_inside else loss_of(seen_by_amp(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), clip)
        optimizer.step()
    ended = weights_of(model), list(model.seen)
    ampcompat.reset()
    return ended
