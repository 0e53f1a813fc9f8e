"""Optimizers that are pickled with master weights: the pickle says which half param each master belongs to.

Pickled together, a model and its optimizer still share these params. ``amp.scale_loss`` takes such an optimizer up
again; without a session its ``step`` raises, since masters without gradients would train nothing.
"""

from ...errors import AmpError

_PAIRS = "_amp_pairs"


class PickledStep:
    """The ``step`` of an optimizer that was pickled with master weights: an error.

    Args:
        name: the name of the optimizer's class.
    """

    def __init__(self, name):
        self._name = name

    def __call__(self, *args, **kwargs):
        """Raise an ``AmpError`` that says how to go on."""
        raise AmpError(
            f"This {self._name} was pickled with float32 master weights, and amp has not seen it since. Pickle it "
            "together with its model, and call amp.initialize (for any model, at the same opt_level) and "
            "amp.scale_loss; or save and load model.state_dict(), optimizer.state_dict() and amp.state_dict()."
        )

    @property
    def __func__(self):  # what learning-rate schedulers ask for first
        return self()


def state_of(record, state):
    """Return what is pickled of an optimizer.

    Args:
        record: its ``OptimizerRecord``.
        state: what its own ``__getstate__`` returns.
    """
    pairs = [tuple(pair) for pair in record.pairs()]
    if not pairs or not isinstance(state, dict):
        return state
    return dict(state, **{_PAIRS: pairs, "step": PickledStep(type(record.optimizer).__name__)})


def take_pairs(optimizer):
    """Return the (model, master) pairs of an unpickled optimizer, and give it back its ``step``; [] for any other."""
    if not hasattr(optimizer, _PAIRS):
        return []
    vars(optimizer).pop("step", None)
    return vars(optimizer).pop(_PAIRS)
