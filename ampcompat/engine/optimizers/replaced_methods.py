"""The methods of an optimizer that ``amp.initialize`` replaces, and ``attach``, which replaces them.

``step`` has a file of its own. Here are ``zero_grad``, ``add_param_group``, ``load_state_dict``, deep copies,
pickles, and Apex's names for the parts of an iteration.
"""

import copy
import functools
import inspect
from types import FunctionType, MethodType

from ...errors import AmpError
from ...support.patching import PatchStack
from ...support.torch_compat import step_hooks
from ...support.torch_compat.thread_blocks import grad_enabled
from . import apex_checkpoints, chunked_step, pickled_optimizers, step_or_skip
from .amp_stash import STASH, AmpStash
from .optimizer_record import record_of
from .step_or_skip import amp_step


class ReplacedMethods(dict):
    """The methods that an optimizer had before ``attach``, by name.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer):
        self.patches = PatchStack()  # restores them
        self.hidden_hooks = PatchStack()  # restores the hooks of a step that runs chunk by chunk
        self.sets_to_none = default_of_set_to_none(optimizer.zero_grad)  # what ``zero_grad`` does by default
        self.of_optimizer = step_or_skip.own_method_names(optimizer)
        super().__init__({name: getattr(optimizer, name, None) for name in [*_REPLACEMENTS, *self.of_optimizer]})


def attach(record):
    """Set the ``AmpStash`` of a record's optimizer and replace its methods; ``record.methods.patches`` undoes it."""
    optimizer, methods = record.optimizer, record.methods
    methods.patches.defer(methods.hidden_hooks.undo)
    methods.patches.set(optimizer, STASH, AmpStash(record))
    for name, replacement in _REPLACEMENTS.items():
        methods.patches.set(optimizer, name, _bound(optimizer, replacement, methods[name]))
    for name in methods.of_optimizer:
        replacement = step_or_skip.replacement_of_own(record, name, methods[name])
        if replacement is not None:
            methods.patches.set(optimizer, name, replacement)
    if record.masters:
        step_hooks.register_first(optimizer, _round_masters, methods.patches)


def _round_masters(optimizer, args, kwargs):
    """Run as the first hook after a step: a script's own hooks see the weights of after it."""
    record = record_of(optimizer)
    if record is not None and record.is_running:
        record.masters.finish_step()
        record.is_rounded = True


def _bound(optimizer, replacement, original):
    # A function of its own, as each has its own attributes; not a wrapper, which would be one more call at every step.
    method = FunctionType(replacement.__code__, replacement.__globals__)
    # A wrapped, bound method: learning-rate schedulers read ``step.__func__`` and the attributes that they have set on
    # ``step``, and warn or fail with anything else. ``wraps`` copies these attributes.
    functools.wraps(replacement if original is None else original)(method)
    if original is not None:
        _copy_signature(original, method)
    return MethodType(method, optimizer)


def _copy_signature(original, method):
    """Give the function ``method`` the signature of the bound ``original``, plus ``self``."""
    try:
        signature = inspect.signature(original)
    except (TypeError, ValueError):  # a callable without a signature
        return
    rest = list(signature.parameters.values())
    if rest and rest[0].name == "self":  # a scheduler's wrapper is a function that takes ``self``
        del rest[0]
    is_positional = bool(rest) and rest[0].kind is inspect.Parameter.POSITIONAL_ONLY
    kind = inspect.Parameter.POSITIONAL_ONLY if is_positional else inspect.Parameter.POSITIONAL_OR_KEYWORD
    method.__signature__ = signature.replace(parameters=[inspect.Parameter("self", kind)] + rest)


def _add_param_group(self, *args, **kwargs):
    before = len(self.param_groups)
    record = self._amp_stash.record
    result = record.methods["add_param_group"](*args, **kwargs)
    try:
        if record.masters.are_stored:
            chunked_step.check(self, was_tried=True)
        pairs = record.masters.make_of_groups(self.param_groups[before:])
    except AmpError:
        del self.param_groups[before:]
        raise
    record.find_process_groups()
    record.session.add_masters(record, pairs)
    return result


def _load_state_dict(self, state_dict, *args, **kwargs):
    record = self._amp_stash.record
    masters = apex_checkpoints.targets(record, state_dict)
    result = record.methods["load_state_dict"](apex_checkpoints.inner_state(state_dict), *args, **kwargs)
    record.masters.follow_state()
    apex_checkpoints.copy_masters(record, masters)
    return result


def _deepcopy(self, memo):
    """Copy the record with the optimizer; torch would leave it out. The copy trains independently."""
    record = self._amp_stash.record
    record.masters.refresh()
    record.gradients.take_changes()
    record.masters.restore_values()
    with PatchStack() as patches:
        patches.set(self, "__deepcopy__", record.methods["__deepcopy__"])
        patches.set(self, "__getstate__", lambda: _own_state(record))
        twin = copy.deepcopy(self, memo)
    if record_of(twin) is None:
        record.session.add_copy(record.copied_to(twin, memo))
    return twin


def _getstate(self):
    record = self._amp_stash.record
    record.masters.restore_values()
    return pickled_optimizers.state_of(record, _own_state(record))


def _own_state(record):
    """Return what the optimizer's own ``__getstate__`` returns, without what ``attach`` has set on it."""
    getstate = record.methods["__getstate__"]  # absent before Python 3.11, unless the class has one
    state = vars(record.optimizer) if getstate is None else getstate()
    if not isinstance(state, dict):
        return state
    return {name: value for name, value in state.items() if name != STASH and name not in record.methods}


# Apex's names for the parts of an iteration. Clients with loops of their own call them (fairseq, NVIDIA's BERT).


def client_method(record, name):
    """Return what a client has put in place of a method that ``attach`` has set on an optimizer, or None."""
    method = getattr(record.optimizer, name)
    return None if getattr(method, "__wrapped__", None) is _REPLACEMENTS[name] else method


def _amp_lazy_init(self):
    """Refresh the masters, which ``initialize`` has made and which follow the half params until the first step."""
    self._amp_stash.record.masters.refresh(new_only=True)


def _prepare_amp_backward(self):
    record = self._amp_stash.record
    scaler = record.configuration.scalers[0]
    record.gradients.begin()
    with grad_enabled(False):
        record.gradients.unscale_delayed(scaler, scaler.loss_scale(), set(), set())
        record.gradients.enter(scaler, scaler.loss_scale(), set())


def _post_amp_backward(self, scaler):
    with grad_enabled(False):
        self._amp_stash.record.gradients.leave(scaler, scaler.loss_scale(), set())


def _master_params_to_model_params(self):
    self._amp_stash.record.masters.finish_step()


def amp_zero_grad(self, *args, **kwargs):
    """Replaces ``optimizer.zero_grad``: clear the gradients of the model's half params and of their masters."""
    record = self._amp_stash.record
    zero_grad, default = record.methods["zero_grad"], record.methods.sets_to_none
    if default is not None:
        stated = kwargs["set_to_none"] if "set_to_none" in kwargs else args[0] if args else default
    else:  # torch before 1.7, and wrappers: no such argument, so it is implemented here
        stated = kwargs.pop("set_to_none", args[0] if args else False)
        args = ()
    record.follow_groups()
    record.gradients.clear(stated)  # first: half gradients that it leaves would be widened to be cleared
    result = zero_grad(*args, **kwargs)
    if record.masters.chunks:
        record.gradients.follow()
    if default is None and stated:
        for param in [param for group in self.param_groups for param in group["params"]]:
            param.grad = None
    return result


_REPLACEMENTS = {
    "step": amp_step,
    "zero_grad": amp_zero_grad,
    "add_param_group": _add_param_group,
    "load_state_dict": _load_state_dict,
    "__deepcopy__": _deepcopy,
    "__getstate__": _getstate,
    "_amp_lazy_init": _amp_lazy_init,
    "_lazy_init_maybe_master_weights": _amp_lazy_init,
    "_prepare_amp_backward": _prepare_amp_backward,
    "_post_amp_backward": _post_amp_backward,
    "_master_params_to_model_params": _master_params_to_model_params,
}


def default_of_set_to_none(zero_grad):
    """Return what an optimizer's ``zero_grad`` does by default, or None if it takes no such argument."""
    try:
        parameter = inspect.signature(zero_grad).parameters.get("set_to_none")
    except (TypeError, ValueError):
        return None
    return None if parameter is None else bool(parameter.default)
