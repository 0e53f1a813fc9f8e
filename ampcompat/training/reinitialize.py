"""``what_is_new``: which models and optimizers a second ``initialize`` in a session has to prepare.

Trainers that restore a run call ``initialize`` twice.
"""

from ..models import state_dict
from ..optimizers.adapter import SLOT


def what_is_new(request, policies, links, masters):
    """Return (models, grown models, optimizers) of a request that are not initialized yet.

    Args:
        request: the ``Request``.
        policies: ``{model: policy}`` of the session.
        links: the ``Links`` of its adapters.
        masters: its ``MasterTable``.

    A model has grown if it is initialized, and modules or params were added since that must be cast too, such as a new
    head.
    """
    policy = request.policy
    models = [model for model in request.models if policies.get(model) != policy]
    again = [model for model in request.models if model not in models] if policy.casts_model else []
    grown = [model for model in again if state_dict.newcomers(model, masters)]
    known = _params([model for model in (request.models if models else policies) if model not in models])
    new = _params(models)
    optimizers = [each for each in request.optimizers if not _is_in_force(each, policy, links, known, new)]
    return models, grown, optimizers


def _params(models):
    return {id(param) for model in models for param in model.parameters()}


def _is_in_force(optimizer, policy, links, known, new):
    """Return whether an optimizer has an adapter with these dtypes, and params of known models but of no new one.

    Params that belong to no model are allowed: they may be of a replaced head, or of a loss.
    """
    adapter = getattr(optimizer, SLOT, None)
    if getattr(adapter, "links", None) is not links or adapter.dtypes != policy.dtypes:
        return False
    reached = {id(param) for param in adapter.reached()}
    return bool(reached & known) and not reached & new
