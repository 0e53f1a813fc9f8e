"""``ModelNames``: the names of modules and params of the diagnosed models in messages."""

import functools
import weakref

from .skip_facts import WHOLE


class ModelNames:
    """The diagnosed models and their names. If there are several models, the names in each have a suffix."""

    def __init__(self):
        self._suffixes = weakref.WeakKeyDictionary()  # model -> suffix of the names in it
        self._params = {}  # id(param) -> (weak reference to it, name)

    def add(self, models):
        """Add models; return (model, function: name of a module -> its name in messages) for the new ones."""
        new = [model for model in models if model not in self._suffixes]
        has_several = len(self._suffixes) + len(new) > 1
        added = []
        for model in new:
            suffix = self._suffixes[model] = self._suffix(model) if has_several else ""
            for name, param in model.named_parameters():
                forget = functools.partial(self._params.pop, id(param))  # given a dead reference: the default of "pop"
                self._params[id(param)] = (weakref.ref(param, forget), name + suffix)
            added.append((model, functools.partial(_module_name, type(model).__name__, suffix)))
        return added

    def models(self):
        """Return (model, suffix of the names in it) of all models that still exist."""
        return list(self._suffixes.items())

    def gradients(self, records):
        """Yield (name, unscaled gradient) of the params of optimizers."""
        for record in records:
            params = [pair for pair in record.pairs()] + [(param, param) for param in record.unpaired_params()]
            for index, (param, master) in enumerate(params):
                if master.grad is not None:
                    reference, name = self._params.get(id(param), (_none, None))
                    if reference() is not param:
                        name = f"param {index} of {type(record.optimizer).__name__}"
                    yield name, master.grad

    def clear(self):
        """Forget the models; names of params are kept."""
        self._suffixes.clear()

    def _suffix(self, model):
        """Return the suffix of the names in one of several models."""
        kind = type(model).__name__
        alike = sum(1 for known in list(self._suffixes) if type(known) is type(model))
        return f" of {kind} {alike + 1}" if alike else f" of {kind}"


def _none():
    return None


def _module_name(kind, suffix, name):
    """Return the name of a module in messages."""
    return name + suffix if name else WHOLE + (suffix[len(" of ") :] or kind)
