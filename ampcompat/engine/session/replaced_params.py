"""An optimizer whose models have got other params trains nothing, with amp or without: an error says so.

``model.to(device)`` makes new params where tensors of the new device are of another type (xla, or from meta), and
``load_state_dict(assign=True)`` always does.
"""

import weakref

from ...errors import AmpError
from ...support.tensor_lists import is_shard


class PlaceInModel:
    """Where the first param that both an optimizer and a model have is, so that a pass need not look at all of them."""

    def __init__(self, module, name, param):
        self._module, self._name, self._id = weakref.ref(module), name, id(param)

    def has_other_param(self):
        """Return whether the module lives and has another param there, or none; ``fsdp`` looks at shards itself.

        A tensor that was computed, perhaps from the param, is no other param: fast weights in meta-learning.
        """
        module = self._module()
        params = getattr(module, "_parameters", None)
        if params is None:
            return False
        # Those of a TorchScript module have no ``get``.
        param = params[self._name] if self._name in params else vars(module).get(self._name)
        return id(param) != self._id and not is_shard(param) and getattr(param, "grad_fn", None) is None


def place_of(record):
    """Return the ``PlaceInModel`` of an ``OptimizerRecord``, or None if no model of its session has any.

    Shards have none: while they are gathered, the model has another param in their place.
    """
    owned = {id(param) for param in record.leaf_params()}
    for model in record.session.models:
        for module in model.modules():
            for name, param in module._parameters.items():
                if id(param) in owned and not is_shard(param):
                    return PlaceInModel(module, name, param)
    return None


def check(record):
    """Find another param of an optimizer in its models, which have replaced the one that was theirs.

    Raises:
        AmpError: they have none any more.
    """
    record.follow_groups()  # a script may have given the optimizer the new params
    place = place_of(record)
    if place is None:
        raise AmpError(
            f"{type(record.optimizer).__name__} would train nothing, here and without amp: the models have got other "
            "params since it was made. model.to(device) makes new ones for some devices (xla, or from meta), and "
            "load_state_dict(assign=True) always. Do this first, then make the optimizer of the model's params, then "
            "call amp.initialize."
        )
    record.place = place
