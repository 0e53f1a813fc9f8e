"""Small trainings, as ``forecast_cases.py`` has them: a row each."""

import dataclasses
from typing import Callable

import torch
from torch import nn

from ampcompat import amp


def late(owner, name):
    """Return a function that calls one of torch's, which it looks up at each call, since casts replace it."""
    return lambda *args, **options: getattr(owner, name)(*args, **options)


class Body(nn.Module):
    """A module whose forward is a function of its input, multiplied by a weight of ones."""

    def __init__(self, function, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.function = function

    def forward(self, x):
        return self.function(x * self.weight)


class Net(nn.Module):
    """A linear layer, a body and another linear layer."""

    def __init__(self, body, features, width, outputs=1):
        super().__init__()
        self.embed, self.body, self.head = nn.Linear(features, width), body, nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.body(self.embed(x)))


class Module(nn.Module):
    """A module with children, whose forward is a function of the children, as ``self.NAME``, and its input."""

    def __init__(self, function, **children):
        super().__init__()
        self.function = function
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x):
        return self.function(self, x)


@dataclasses.dataclass(frozen=True)
class Training:
    """One training.

    Args:
        name: printed in the first column of its row.
        modules: one of them is to be named where a level fails; empty where no fault is planted in a module.
        model: makes the model.
        batch: returns the arguments of the model, and the target, of a step.
        loss: a function of the model's output and the target.
        optimizer: makes the optimizer from the list of the model's params.
        steps: how many.
        options: of ``amp.initialize``.
        held_out: whether the tool's constants were chosen before it was written.
    """

    name: str
    modules: tuple
    model: Callable
    batch: Callable
    loss: Callable
    optimizer: Callable
    steps: int
    options: dict
    held_out: bool = False

    def train(self, level=None):
        """Train, as a script for Apex does; the level is forced from outside."""
        model = self.model()
        optimizer = self.optimizer(list(model.parameters()))
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0, **self.options)
        for step in range(self.steps):
            inputs, target = self.batch(step)
            optimizer.zero_grad()
            with amp.scale_loss(self.loss(model(*inputs), target), optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
