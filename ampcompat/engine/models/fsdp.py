"""O2, O3 and O5 on models that torch's ``fully_shard`` (FSDP2) has sharded, through its mixed precision.

The float32 shards are the master weights, and the optimizer steps on them. torch gathers a layer's weights in half, and
frees them after the layer has run. So nothing is cast here: ``gather_in`` sets the dtype in which torch gathers.
"""

import dataclasses
import weakref

from ...errors import AmpError
from ...support.live_objects import WeakList, live_items
from ...support.tensor_lists import is_narrower, is_shard


def policy_of(policy, reduce_dtype=None):
    """Return the ``MixedPrecisionPolicy`` with which ``fully_shard`` computes as a level's ``Policy`` says.

    Args:
        reduce_dtype: the dtype in which gradients are reduced; None is the level's high dtype.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if not policy.casts_model:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(policy.cast_model_type, reduce_dtype or policy.dtypes.high)


def check(model, policy):
    """Raise where a level that casts weights cannot be had for the sharded params of a model.

    Raises:
        AmpError: a param is a DTensor that ``fully_shard`` does not gather, or a module was sharded with another dtype.
    """
    if not policy.casts_model:
        return
    gathered = set()
    for name, module, state in _sharded(model):
        module.reshard()  # so that the model's params are the shards
        for param in _params(state):
            gathered.add(id(param.sharded_param))
            given = param.mp_policy.param_dtype
            if given not in (None, policy.cast_model_type, policy.dtypes.high):
                raise AmpError(
                    f"fully_shard got param_dtype={given} for {_quoted(name)}, and {policy.opt_level} computes in "
                    f"{policy.cast_model_type}. Leave mp_policy out, or pass "
                    f'ampcompat.fsdp_policy("{policy.opt_level}").'
                )
    for name, param in model.named_parameters():
        if is_shard(param) and id(param) not in gathered:
            raise AmpError(
                f"param {name} is a DTensor that fully_shard does not gather, so {policy.opt_level} cannot cast it. "
                f"Use opt_level {'O4' if policy.opt_level == 'O5' else 'O1'}, which leaves the weights alone."
            )


def gather_in(policy, model, kept, patches):
    """Let torch gather the weights of a sharded model in the low dtype and reduce gradients in the high one.

    What the user passed to ``fully_shard`` beyond the dtype of the weights stays.

    Args:
        model: its modules that went through ``fully_shard`` are changed; others are not.
        kept: modules whose own params are gathered in float32.

    Raises:
        AmpError: this torch gathers a group of params in one dtype, and one of them is of a kept module.
    """
    names = {id(param): name for name, param in model.named_parameters()}
    protected = {id(param) for module in kept for param in module.parameters(recurse=False)}
    low, high = policy.cast_model_type, policy.dtypes.high
    for _, module, state in _sharded(model):
        before = state._mp_policy, [param.mp_policy for param in _params(state)]
        kept_here = [param.sharded_param for param in _params(state) if id(param.sharded_param) in protected]
        is_mixed = 0 < len(kept_here) < len(before[1])
        if is_mixed and not hasattr(before[0], "param_dtype_override_fn"):  # torch 2.15
            raise AmpError(
                f"{names[id(kept_here[0])]} stays float32 at {policy.opt_level}, and torch gathers it together with "
                f"weights in {low}. Shard its module on its own: call fully_shard with it before the modules around it."
            )
        dtypes = [None if id(param.sharded_param) in protected else low for param in _params(state)]
        of_inputs = None if kept_here and not is_mixed else low
        after = [_with_dtypes(each, dtype, high) for each, dtype in zip(before[1], dtypes)]
        patches.defer_for(module, _set_policies, weakref.ref(module), *before)
        _set_policies(weakref.ref(module), _with_dtypes(before[0], of_inputs, high), after)


def _with_dtypes(policy, param_dtype, reduce_dtype):
    return dataclasses.replace(policy, param_dtype=param_dtype, reduce_dtype=policy.reduce_dtype or reduce_dtype)


def _set_policies(reference, of_inputs, of_params):
    """Set the ``MixedPrecisionPolicy`` of a module's inputs and those of its params, before or after its first pass."""
    module = reference()
    module.reshard()
    state = module._get_fsdp_state()
    state._mp_policy = of_inputs
    for param, policy in zip(_params(state), of_params):
        param.mp_policy = policy
        param.all_gather_outputs = []  # allocated in the dtype from before
        vars(param).pop("_unsharded_param", None)
    for group in _groups(state):
        group.mp_policy = group.fsdp_params[0].mp_policy
        if state._is_root is not None:  # else torch does so in the first pass
            group._init_mp_dtypes()


class ShardedModels:
    """The models of a session, as far as their gradients may be reduced in a later backward pass only.

    After ``set_requires_gradient_sync(False)`` or ``set_requires_all_reduce(False)`` torch keeps gradients. They cannot
    be unscaled there, so every pass until they are reduced has the same loss scale.
    """

    def __init__(self):
        self.unchecked = weakref.WeakKeyDictionary()  # model -> its ``Configuration``: for ``check_new``
        self.exist = False  # whether ``fully_shard`` has sharded any of them
        self._modules = WeakList()
        self._kept_for = WeakList()  # records of the optimizers of passes that were not reduced

    def add(self, model, configuration):
        """Add a model of ``initialize`` and its ``Configuration``."""
        self.unchecked[model] = configuration

    def check_new(self, records):
        """Check the models that have had no backward pass yet: ``fully_shard`` may come after ``initialize``.

        Raises:
            AmpError: ``fully_shard`` has sharded half weights.
        """
        for model, configuration in live_items(self.unchecked):
            _check_shards(model, configuration.policy)
            for _, module, _ in _sharded(model):
                self.exist = True
                self._modules.add(module)
            _check_optimizers(model, [record.optimizer for record in records], configuration.notices)
            self.unchecked.pop(model, None)

    def keep_gradients(self, records):
        """Return whether torch keeps gradients of the pass of these records that ends now."""
        groups = [group for module in self._modules for group in _groups(module._get_fsdp_state())]
        unreduced = [group for group in groups if not (group.reduce_grads and group.all_reduce_grads)]
        ids = {id(param.sharded_param) for group in unreduced for param in group.fsdp_params}
        kept_for = [each for each in records if ids and any(id(param) in ids for param in each.leaf_params())]
        for record in records:
            (self._kept_for.add if record in kept_for else self._kept_for.discard)(record)
        return bool(kept_for)

    def scales(self, records):
        """Return the loss scales of gradients that torch keeps since earlier passes of these records."""
        return [record.gradients.state.scale for record in self._kept_for if record in records]


def _check_shards(model, policy):
    """Raise if ``fully_shard`` was called after ``initialize``, so that it has sharded half weights."""
    for name, _, state in _sharded(model) if policy.casts_model else ():
        if any(is_narrower(param.sharded_param, policy.dtypes.high) for param in _params(state)):
            raise AmpError(
                f"fully_shard has sharded {_quoted(name)} after amp.initialize had cast its weights to "
                f"{policy.cast_model_type}. Call fully_shard first, make the optimizer from the sharded model, then "
                "call amp.initialize: the float32 shards are the master weights."
            )


def _check_optimizers(model, optimizers, notices):
    """Print a notice if a model is sharded and no optimizer has shards, as when it was made before ``fully_shard``."""
    owned = [param for each in optimizers for group in each.param_groups for param in group["params"]]
    trainable = [param for param in model.parameters() if param.requires_grad]
    if any(map(is_shard, trainable)) and not any(map(is_shard, owned)):
        notices.say(
            f"ampcompat: {type(model).__name__} is sharded, and no optimizer that amp knows has shards: the model does "
            "not train. Call fully_shard first, make the optimizer from the sharded model, then call amp.initialize."
        )


def _sharded(model):
    """Yield (name, module, state) of every call of ``fully_shard``; a list of modules that it got has one state."""
    seen = set()
    for name, module in model.named_modules():
        if hasattr(module, "_get_fsdp_state"):
            state = module._get_fsdp_state()
            if id(state) not in seen:
                seen.add(id(state))
                yield name, module, state


def _groups(state):
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    return [state._fsdp_param_group] if state._fsdp_param_group else []  # older torch has one group for a call


def _params(state):
    return [param for group in _groups(state) for param in group.fsdp_params]


def _quoted(name):
    return repr(name) if name else "the model"
