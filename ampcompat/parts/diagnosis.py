"""Say why a run overflows again and again: what a loss scale cannot mend.

Owns: ``Diagnosis``: what is inf or nan, where it came first.
Must not touch: the run; it looks at gradients that are there and listens to one forward pass.
The surprise: it waits for the device at every module, but only during the one iteration before it speaks.
"""

import torch

from .patching import PatchStack


class Diagnosis:
    """Listens to models from ``listen`` on; ``findings`` says what was heard and seen.

    Args:
        models: the modules to listen to.
    """

    def __init__(self, models):
        self._models = list(models)
        self._patches = PatchStack()
        self._first = None  # (name, what) of the first module with a non-finite output
        self._heard = set()  # ids of the models that have been through one forward pass

    def listen(self):
        """Look at the output of every module in the next forward pass of each model."""
        for model in self._models:
            for name, module in model.named_modules():
                hook = self._hook(model, name or type(model).__name__, module is model)
                self._patches.defer(module.register_forward_hook(hook).remove)

    def _hook(self, model, name, is_last):
        def look(module, args, output):
            if self._first is None and id(model) not in self._heard:
                what = non_finite(_tensors(output))
                if what:
                    self._first = (name, what)
            if is_last:
                self._heard.add(id(model))

        return look

    def stop(self):
        """Listen no more."""
        self._patches.undo()

    def findings(self, loss, params):
        """Stop listening, and return sentences: the loss, the first module, the params.

        Args:
            loss: the last loss, before scaling, or None.
            params: (name, param, gradient) of every param, in the order of the forward pass.
        """
        self.stop()
        found = []
        if loss is not None:
            what = non_finite([loss])
            found.append("the loss itself was {}".format(what) if what else "the loss was finite")
        if self._first:
            found.append("the first module with {1} in its output was {0}".format(*self._first))
        weights = [(name, non_finite([param])) for name, param, _ in params]
        weights = ["{} ({})".format(name, what) for name, what in weights if what]
        if weights:
            found.append("weights that are not finite themselves: {}".format(_few(weights)))
        # Backward reaches the last layers first, so what went wrong first is the last in the order of forward.
        gradients = [(name, non_finite([grad])) for name, _, grad in reversed(params) if grad is not None]
        gradients = ["{} ({})".format(name, what) for name, what in gradients if what]
        if gradients:
            found.append("gradients, in the order of the backward pass: {}".format(_few(gradients)))
        return found


def non_finite(values):
    """Return "nan", "inf" or None: the worst that floating tensors hold. Waits for the device."""
    worst = None
    for value in values:
        if value.is_sparse:
            value = value.coalesce()._values()
        value = value.detach()
        if bool((value != value).any()):
            return "nan"
        if not bool((value - value == 0).all()):
            worst = "inf"
    return worst


def _tensors(output):
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (tuple, list)):
        for item in output:
            yield from _tensors(item)
    elif isinstance(output, dict):
        yield from _tensors(list(output.values()))


def _few(items):
    return ", ".join(items[:3]) + (" and {} more".format(len(items) - 3) if len(items) > 3 else "")
