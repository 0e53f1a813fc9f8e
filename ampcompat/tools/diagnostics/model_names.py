"""``ModelNames``: the names of modules and params of the diagnosed models in messages."""

import functools
import weakref

from .skip_facts import ModelPart


class ModelNames:
    """The diagnosed models and the ``ModelPart`` of each of their modules and params."""

    def __init__(self):
        self._models = weakref.WeakKeyDictionary()  # model -> a function: path -> ``ModelPart``
        self._params = {}  # id(param) -> (weak reference to it, ``ModelPart``)

    def add(self, models):
        """Add models; return (model, function: path of a module -> ``ModelPart``) for the new ones."""
        new = [model for model in models if model not in self._models]
        is_only = len(self._models) + len(new) == 1
        for model in new:
            kind = type(model).__name__
            alike = sum(1 for known in list(self._models) if type(known) is type(model))
            kind = f"{kind} {alike + 1}" if alike and not is_only else kind
            part_of = self._models[model] = functools.partial(ModelPart, model=kind, is_only_model=is_only)
            for name, param in model.named_parameters():
                forget = functools.partial(self._params.pop, id(param))  # given a dead reference: the default of "pop"
                self._params[id(param)] = (weakref.ref(param, forget), part_of(name))
        return [(model, self._models[model]) for model in new]

    def models(self):
        """Return (model, function: path -> ``ModelPart``) of all models that still exist."""
        return list(self._models.items())

    def gradients(self, records):
        """Yield (``ModelPart``, unscaled gradient) of the params of optimizers."""
        for record in records:
            params = [pair for pair in record.pairs()] + [(param, param) for param in record.unpaired_params()]
            for index, (param, master) in enumerate(params):
                if master.grad is not None:
                    reference, part = self._params.get(id(param), (_none, None))
                    if reference() is not param:
                        part = ModelPart(f"param {index}", type(record.optimizer).__name__, is_only_model=False)
                    yield part, master.grad

    def clear(self):
        """Forget the models; names of params are kept."""
        self._models.clear()


def _none():
    return None
