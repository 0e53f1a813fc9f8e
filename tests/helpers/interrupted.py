"""A small training, an error at any line of it, and what must be left afterwards."""

import ast
import collections
import contextlib
import functools
import os
import sys

import torch

import ampcompat
from ampcompat import amp
from ampcompat.errors import AmpError
from ampcompat.support.torch_compat import thread_context
from helpers import precision, snapshots

PACKAGE = os.path.dirname(os.path.abspath(ampcompat.__file__)) + os.sep

#: Options of ``amp.initialize``, and the cast backend.
SETTINGS = {
    "O1 native": ({"opt_level": "O1", "init_scale": 128.0}, "native"),
    "O1 patched": ({"opt_level": "O1", "init_scale": 128.0}, "patched"),
    "O2": ({"opt_level": "O2", "init_scale": 128.0}, None),
    "O2 with diagnose": ({"opt_level": "O2", "init_scale": 128.0, "diagnose": True}, None),
    "O3": ({"opt_level": "O3", "loss_scale": 128.0}, None),
    "O5 with remainders": ({"opt_level": "O5", "store_param_remainders": True}, None),
}


class Training:
    """A model and its optimizer."""

    def __init__(self, options):
        torch.manual_seed(0)
        layers = torch.nn.Conv1d(1, 2, 3, bias=False), torch.nn.BatchNorm1d(2), torch.nn.Flatten()
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(12, 3)).to(precision.HIGH)
        self.params = list(self.model.parameters())
        self.optimizer = torch.optim.Adam(self.params, lr=0.01, eps=1e-3)
        self.batch = torch.randn(4, 1, 8, dtype=precision.HIGH)
        self.options = options
        self._before = self.attributes(), snapshots.snapshot()

    def initialize(self):
        amp.initialize(self.model, self.optimizer, verbosity=0, **self.options)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(self.batch).to(precision.HIGH).pow(2).mean()
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.optimizer.step()

    def plain_step(self):
        self.optimizer.zero_grad()
        self.model(self.batch).pow(2).mean().backward()
        self.optimizer.step()

    def weights(self):
        return [param.detach().clone() for param in self.params]

    def attributes(self):
        """Return what the model's modules and the optimizer have, and how many hooks."""
        owners = [*self.model.modules(), self.optimizer]
        names = [sorted(set(vars(owner)) - {"_opt_called", "_step_count"}) for owner in owners]
        return names, [len(each) for owner in owners for name, each in vars(owner).items() if name.endswith("_hooks")]

    def assert_is_plain(self):
        """Assert that model, optimizer and torch are without amp."""
        assert ampcompat.current() is None
        held = [param for group in self.optimizer.param_groups for param in group["params"]]
        assert list(map(id, held)) == list(map(id, self.params))
        assert {param.dtype for param in self.params} == {precision.HIGH}
        assert set(self.optimizer.state) <= set(self.params)
        assert self.attributes() == self._before[0]
        assert torch.is_grad_enabled()
        assert not thread_context.function_modes() and thread_context.saved_tensor_hooks() is None
        assert snapshots.differences_settled(self._before[1]) == []

    def assert_trains(self):
        """Assert that a plain step, and one of a new session, change the weights."""
        for step in (self.plain_step, self._session_of_one_step):
            before = self.weights()
            step()
            assert not any(map(torch.equal, before, self.weights()))

    def _session_of_one_step(self):
        self.initialize()
        self.step()
        ampcompat.reset()


@functools.lru_cache(None)
def _with_blocks(file):
    """Return {line of a ``with`` statement: its last line} of a file."""
    with open(file, encoding="utf-8") as opened:
        nodes = [node for node in ast.walk(ast.parse(opened.read())) if isinstance(node, ast.With)]
    return {node.lineno: max(getattr(each, "lineno", 0) for each in ast.walk(node)) for node in nodes}


class Lines:
    """Notes the lines of the package that are executed within its ``with`` block, or raises before one of them.

    The line where Python leaves a ``with`` statement is left out: no signal is handled there, but as an ``__exit__`` in
    Python begins. So the beginning of every ``__exit__`` is noted, whatever package it is of.

    Args:
        error, at: what is raised, and where: before a line is reached for the n-th time, (line, n); None: nothing.
    """

    def __init__(self, error=None, at=None):
        self.places = []
        self._error, self._at = error, at
        self._times = collections.Counter()
        self._is_over = False

    def __enter__(self):
        sys.settrace(self._called)

    def __exit__(self, *exc_info):
        sys.settrace(None)

    def _called(self, frame, event, arg):
        file = frame.f_code.co_filename
        if self._is_over or file == __file__:
            return None
        if not file.startswith(PACKAGE):
            if frame.f_code.co_name == "__exit__":
                self._reach((file, frame.f_lineno))
            return None
        before = sys.maxsize if frame.f_lasti > 0 else 0  # a generator that goes on may be within a block

        def line(frame, event, arg):
            nonlocal before
            if event == "line" and not self._is_over:
                number = frame.f_lineno
                is_left = number < before and (before <= _with_blocks(file).get(number, 0) or before == sys.maxsize)
                before = number
                if not (is_left and number in _with_blocks(file)):
                    self._reach((file[len(PACKAGE) :], number))
            return line

        return line

    def _reach(self, place):
        self.places.append(place)
        self._times[place] += 1
        if (place, self._times[place]) == self._at:
            self._is_over = True
            raise self._error("interrupted")


def first_and_last(places):
    """Return (line, n) for the first and the last time that each line is reached, in this order."""
    total, times, points = collections.Counter(places), collections.Counter(), []
    for place in places:
        times[place] += 1
        if times[place] in (1, total[place]):
            points.append((place, times[place]))
    return points


def run(training, phase=None, lines=None):
    """Train for two steps in a session, with ``lines`` around one phase; yield what follows."""
    phases = {
        "initialize": training.initialize,
        "first": training.step,
        "step": training.step,
        "reset": ampcompat.reset,
    }
    for name, function in phases.items():
        yield name
        with lines if name == phase else contextlib.nullcontext():
            function()


def interrupt(training, phase, error, at):
    """Train with an error at a line; return whether a phase raised it, or an error of the package that it caused."""
    try:
        list(run(training, phase, Lines(error, at)))
    except (error, AmpError):
        return True
    return False
