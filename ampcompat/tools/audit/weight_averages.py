"""Half copies of a trained model that the script writes to: averages of its weights (EMA, ``AveragedModel``).

A model with params of the same shapes that no optimizer has is a copy. If nothing writes to it, it is a frozen one,
such as a teacher, and not looked at further. Each step of an average moves it by a small share of its distance to the
model, which half precision rounds away.
"""

import torch

from ...launch.forced_levels.trained_modules import outermost, params_in, trained_params, unwrapped
from .weight_updates import HALF


class WeightAverages:
    """Looks for copies when a step has ended, and compares them when the run has ended."""

    def __init__(self):
        self._copies = {}  # id(module) -> ``HalfCopy``

    def look(self, optimizers, modules):
        """Add the half copies that are among the modules of the process."""
        trained = set(trained_params(optimizers))
        models = [(model, _shapes(model)) for model in outermost(optimizers, modules)]
        for module in modules:
            module = unwrapped(module)
            if id(module) in self._copies or params_in(module) & trained:
                continue
            params = list(module.parameters())
            if not any(param.dtype in HALF for param in params):
                continue
            model = next((model for model, shapes in models if shapes and shapes == _shapes(module)), None)
            if model is not None and not any(module in copy.module.modules() for copy in self._copies.values()):
                self._copies[id(module)] = HalfCopy(module, model)

    def standing_still(self):
        """Return (class name of the module, share of elements that stand still) of averages where most do."""
        found = [(type(each.module).__name__, each.share_unmoved()) for each in self._copies.values()]
        return [(name, share) for name, share in found if share is not None and share > 0.5]


class HalfCopy:
    """A copy of a model, and what it was when it was found."""

    def __init__(self, module, model):
        self.module, self._model = module, model
        self._first = [(param.detach().clone(), param._version) for param in module.parameters()]

    def share_unmoved(self):
        """Return the share of elements that differ from the model's and have not moved; None if nothing was written."""
        unmoved = distant = 0
        with torch.no_grad():
            for param, (first, version), trained in zip(
                self.module.parameters(), self._first, self._model.parameters()
            ):
                if param.dtype in HALF and param._version != version:
                    is_distant = param != trained.to(param)
                    unmoved = unmoved + (is_distant & (param == first)).sum()
                    distant = distant + is_distant.sum()
        return float(unmoved) / float(distant) if float(distant) else None


def _shapes(module):
    return [param.shape for param in module.parameters()]
