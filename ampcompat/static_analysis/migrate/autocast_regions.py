"""Which statements of a block belong under autocast: the forward pass of a loss, and evaluation."""

from bisect import bisect_left

import libcst as cst

from . import syntax

#: Methods of a model that do not compute anything.
_NO_FORWARD = """
    train eval parameters named_parameters state_dict load_state_dict zero_grad to cuda cpu half float apply modules
    named_modules children named_children buffers named_buffers requires_grad_ no_sync share_memory add_module compile
""".split()
#: Statements of which only the inner blocks may be under autocast in evaluation.
_LARGE = (cst.For, cst.While, cst.With, cst.Try, cst.FunctionDef, cst.ClassDef)


def turns_gradients_off(node):
    """Return whether an expression is ``torch.no_grad()`` or ``torch.inference_mode()``, called or not."""
    name = syntax.name_of(node.func if isinstance(node, cst.Call) else node)
    return name in ("torch.no_grad", "torch.inference_mode", "no_grad", "inference_mode")


class ModelCallVisitor:
    """Which nodes of a script call a model.

    Args:
        facts: the script's ``ScriptFacts``.
    """

    def __init__(self, facts):
        self._facts = facts

    def is_model_call(self, call):
        """Return whether a call runs a model: ``model(x)``, ``model.generate(x)``, or ``loss_of(model, x)``."""
        name = syntax.name_of(call.func)
        if self._facts.is_model(name) or (name or "").rpartition(".")[2] in self._facts.helpers:
            return True
        owner, _, method = (name or "").rpartition(".")
        return self._facts.is_model(owner) and method not in _NO_FORWARD and not method.startswith("register_")

    def calls_a_model(self, node):
        """Return whether a node contains such a call."""
        return any(self.is_model_call(call) for call in syntax.calls(node))

    def evaluates(self, function):
        """Return whether a whole function is evaluation: under ``@torch.no_grad()``, or with ``model.eval()``."""
        if any(turns_gradients_off(mark.decorator) for mark in function.decorators):
            return True
        names = [syntax.name_of(call.func) or "" for call in syntax.calls(function.body)]
        is_eval = any(name.endswith(".eval") and self._facts.is_model(name[: -len(".eval")]) for name in names)
        return is_eval and not any(name.endswith((".backward", "scale_loss")) for name in names)


def training_regions(originals, losses, barriers, calls):
    """Return (first, last) of each run of statements that computes losses.

    Args:
        originals: the statements of a block.
        losses: index of a statement with backward passes -> its losses.
        barriers: the indices of the statements that must stay outside, in order.
        calls: ``ModelCallVisitor``.
    """
    included = sorted(_statements_for(originals, losses, set(barriers)))
    found, waiting = [], []
    for at in included + [len(originals)]:
        if waiting and (at == len(originals) or bisect_left(barriers, waiting[-1]) < bisect_left(barriers, at)):
            with_model = [each for each in waiting if calls.calls_a_model(originals[each])]
            found += [(with_model[0], waiting[-1])] if with_model else []
            waiting = []
        waiting.append(at)
    if found or not included:
        return found
    last = included[-1]
    first = bisect_left(barriers, last)  # the statements after the last barrier before it
    near = [at for at in included if first == 0 or at > barriers[first - 1]]
    with_call = [at for at in near if any(True for _ in syntax.calls(originals[at]))]
    return [(with_call[0], last)] if with_call else []


def _statements_for(originals, losses, barriers):
    """Return the indices of the statements that assign what losses need, directly or through each other, as a set."""
    assigning = {}  # name -> the indices of the statements that assign it
    for at, each in enumerate(originals):
        if at not in barriers and not isinstance(each, (cst.FunctionDef, cst.ClassDef)):
            for name in syntax.assigned_names(each):
                assigning.setdefault(name, []).append(at)
    included, ends = set(), {}  # ends: name -> how many of its statements are included
    waiting = [(at, set().union(*map(syntax.loaded_names, nodes))) for at, nodes in losses.items()]
    while waiting:
        before, names = waiting.pop()
        for name in names & assigning.keys():
            end = bisect_left(assigning[name], before)
            for at in assigning[name][ends.get(name, 0) : end]:
                if at not in included:
                    included.add(at)
                    waiting.append((at, syntax.loaded_names(originals[at])))
            ends[name] = max(end, ends.get(name, 0))
    return included


def evaluation_regions(originals, calls):
    """Return (first, last) of each run of statements of a block that calls a model, or computes with its outputs.

    Args:
        originals: the statements of a block.
        calls: ``ModelCallVisitor``.
    """
    found, names, is_open = [], set(), False
    for at, each in enumerate(originals):
        reads, runs_model = bool(syntax.loaded_names(each) & names), calls.calls_a_model(each)
        if isinstance(each, _LARGE):
            is_open = False
        elif runs_model or reads:
            names |= syntax.assigned_names(each)
            if runs_model or any(True for _ in syntax.calls(each)):
                found[-1:] = [(found[-1][0], at)] if is_open else found[-1:] + [(at, at)]
                is_open = True
    return found
