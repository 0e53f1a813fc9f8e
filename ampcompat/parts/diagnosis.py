"""Say why a run overflows again and again: what a loss scale cannot mend.

Owns: ``Diagnosis``: what is inf or nan, where it came first.
Must not touch: the run; it looks at gradients that are there and listens to forward passes.
The surprise: nobody asked for it, so it listens only during the one iteration before it speaks. Whoever asks
(``diagnose``) gets the forensics instead, which have listened from the beginning.
"""

from .listening import INPUT, Listener
from .magnitudes import Reading, largest, what_is_wrong


class Diagnosis:
    """Listens to models from ``listen`` on; ``findings`` says what was heard and seen.

    Args:
        models: the modules to listen to.
        is_compiling: whether a compiler is tracing.
    """

    def __init__(self, models, is_compiling=bool):
        self._models = list(models)
        self._listener = Listener(is_compiling, gradients=False)

    def listen(self):
        """Look at the output of every module in the forward passes to come."""
        for model in self._models:
            self._listener.attend(model, lambda name, model=model: name or type(model).__name__)

    def stop(self):
        """Listen no more."""
        self._listener.stop()

    def findings(self, loss, params):
        """Stop listening, and return sentences: the loss, the first module, the params.

        Args:
            loss: the last loss, before scaling, or None.
            params: (name, param, gradient) of every param, in the order of the forward pass.
        """
        self.stop()
        found = []
        if loss is not None:
            what = _wrong(loss)
            found.append("the loss itself was {}".format(what) if what else "the loss was finite")
        outputs = Reading([each[:2] for each in self._listener.outputs]).read()
        wrong = [(name, what_is_wrong(value)) for name, value in outputs if what_is_wrong(value)]
        if wrong and wrong[0][0].startswith(INPUT):
            found.append("{1} was there already in {0}".format(*wrong[0]))
        wrong = [each for each in wrong if not each[0].startswith(INPUT)]
        if wrong:
            found.append("the first module with {1} in its output was {0}".format(*wrong[0]))
        weights = _listed([(name, param) for name, param, _ in params])
        if weights:
            found.append("weights that are not finite themselves: {}".format(weights))
        # Backward reaches the last layers first, so what went wrong first is the last in the order of forward.
        gradients = _listed([(name, grad) for name, _, grad in reversed(params) if grad is not None])
        if gradients:
            found.append("gradients, in the order of the backward pass: {}".format(gradients))
        return found


def _wrong(tensor):
    value = largest(tensor)
    return None if value is None else what_is_wrong(value.item())


def _listed(named):
    """Return the names of the first tensors that are not finite, and what they hold; "" for none."""
    found = [(name, _wrong(tensor)) for name, tensor in named]
    items = ["{} ({})".format(name, what) for name, what in found if what]
    return ", ".join(items[:3]) + (" and {} more".format(len(items) - 3) if len(items) > 3 else "")
