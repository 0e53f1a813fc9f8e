"""``Request``: the arguments of one ``amp.initialize``, checked and normalized."""

from typing import NamedTuple, Optional

import torch

from ... import opt_levels
from ...errors import AmpTypeError, AmpValueError
from ..loss_scaling.loss_scaler import LossScaler
from ..loss_scaling.overflow_check import checked_group
from ..masters.remainder_master import check_policy as check_remainders
from . import process_state


class Request(NamedTuple):
    """The arguments of one ``initialize``; models and optimizers are lists."""

    models: list
    optimizers: list
    defaults: opt_levels.Policy
    policy: opt_levels.Policy
    cast_model_outputs: Optional[torch.dtype]  # as the user passed it
    keep_fp32: list
    scaler_options: dict
    num_losses: int
    skip_limit: tuple
    diagnose: bool
    free_half_grads: bool
    store_param_remainders: bool
    allow_half_model: bool

    def make_scalers(self):
        """Return the loss scalers, one per loss."""
        options = {_LOSS_SCALER_NAMES.get(name, name): value for name, value in self.scaler_options.items()}
        return [LossScaler(self.policy.loss_scale, **options) for _ in range(self.num_losses)]

    def fixed_options(self):
        """Return the options, by name, that a second ``initialize`` of the same models and optimizers cannot change.

        The dict is for comparisons. It keeps no layers and predicates alive.
        """
        return dict(
            self.scaler_options,
            keep_fp32=[layer if isinstance(layer, str) else id(layer) for layer in self.keep_fp32],
            cast_model_outputs=self.cast_model_outputs,
            free_half_grads=self.free_half_grads,
            store_param_remainders=self.store_param_remainders,
        )

    @property
    def output_dtype(self):
        """What the models' floating outputs are cast to, or None."""
        if self.cast_model_outputs is not None or self.policy.cast_model_type is None:
            return self.cast_model_outputs
        return self.policy.dtypes.high


def make_request(stated, command_line, dtypes=None):
    """Return the ``Request`` of a call.

    Args:
        stated: all arguments of ``amp.initialize`` by name.
        command_line: overrides of the level and its options, from ``ampcompat run`` or a ``session``.

    Raises:
        AmpTypeError, AmpValueError, AmpError: an invalid argument; the message names what was expected.
    """
    forced = process_state.initialize_options
    layers = listed(stated["keep_fp32"]) + listed(forced.get("keep_fp32"))
    command_line = dict(command_line)
    told = command_line.pop("keep_fp32", None)
    layers += told.split(",") if told else []
    stated = dict(stated, **dict(forced, keep_fp32=layers))
    models, optimizers = stated["models"], stated["optimizers"]
    model_list = checked_list(models, "amp.initialize", "models", "a torch.nn.Module or a list of them", is_module)
    optimizer_list = []
    if optimizers is not None:
        expected = "an optimizer, a list of them, or None"
        optimizer_list = checked_list(optimizers, "amp.initialize", "optimizers", expected, is_optimizer)
    options = {name: stated[name] for name in opt_levels.LEVEL_OPTIONS}
    command_line = dict({name: forced[name] for name in opt_levels.LEVEL_OPTIONS if name in forced}, **command_line)
    is_storing_forced = forced.get("store_param_remainders") or command_line.pop("store_param_remainders", False)
    defaults, policy = opt_levels.resolve(stated["opt_level"], options, command_line, dtypes)
    return Request(
        models=model_list,
        optimizers=optimizer_list,
        defaults=defaults,
        policy=policy,
        cast_model_outputs=_checked(stated, "cast_model_outputs", (torch.dtype, type(None)), "a torch.dtype or None"),
        keep_fp32=stated["keep_fp32"],
        scaler_options=_scaler_options(stated),
        num_losses=checked_count("num_losses must be", stated["num_losses"], least=1 if optimizer_list else 0),
        skip_limit=(checked_count("max_skips must be", stated["max_skips"]), stated["raise_on_max_skips"]),
        diagnose=bool(stated["diagnose"]),
        free_half_grads=_checked(stated, "free_half_grads", bool, "True or False"),
        store_param_remainders=_stores_remainders(stated, is_storing_forced, policy),
        allow_half_model=_checked(stated, "allow_half_model", bool, "True or False"),
    )


_ORDER = " The model comes first, then the optimizer."


def is_optimizer(candidate):
    """Return whether ``candidate`` has what an optimizer needs; LARC and others have it without being a subclass."""
    return all(hasattr(candidate, name) for name in ("param_groups", "state", "step", "zero_grad"))


def is_module(candidate):
    """Return whether ``candidate`` is a module."""
    return isinstance(candidate, torch.nn.Module)


def listed(given):
    """Return an argument that is one object, a collection of them or None, as a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple, set)) else [given]


def checked_list(given, caller, name, expected, accepts):
    """Return one object, or a list of them, as a list; raise ``AmpTypeError`` for one that is not accepted."""
    items = list(given) if isinstance(given, (list, tuple)) else [given]
    for index, item in enumerate(items):
        if not accepts(item):
            place = f"{name}[{index}]" if isinstance(given, (list, tuple)) else name
            is_swapped = (is_optimizer if accepts is is_module else is_module)(item)
            raise AmpTypeError(
                "{} expected {} to be {}, and {} is of type {}.{}".format(
                    caller, name, expected, place, type(item).__name__, _ORDER if is_swapped else ""
                )
            )
    return items


def _checked(stated, name, kinds, expected):
    if not isinstance(stated[name], kinds):
        raise AmpTypeError(f"{name} must be {expected}, not {stated[name]!r}.")
    return stated[name]


def _stores_remainders(stated, is_forced, policy):
    # What a script asks for holds at the level that it asks for, as its other options do.
    is_asked = _checked(stated, "store_param_remainders", bool, "True or False")
    if not (is_forced or (is_asked and policy.opt_level == stated["opt_level"])):
        return False
    check_remainders(policy)
    return True


def checked_count(subject, number, least=1):
    """Return a whole number; raise ``AmpValueError`` for anything else. ``subject`` begins the error's message."""
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise AmpValueError(f"{subject} a whole number from {least} up, not {number!r}.")
    return number


#: The keywords of ``LossScaler`` for those of ``initialize`` that have another name there.
_LOSS_SCALER_NAMES = {"growth_interval": "scale_window", "skip_static_overflow": "checks_static"}


def _scaler_options(stated):
    options = {"max_loss_scale": opt_levels.parse_scale("max_loss_scale", stated["max_loss_scale"])}
    for name in ("min_loss_scale", "init_scale", "growth_factor", "backoff_factor"):
        if stated[name] is not None:
            options[name] = opt_levels.parse_scale(name, stated[name])
    for name in ("growth_interval", "hysteresis"):
        if stated[name] is not None:
            options[name] = checked_count(name + " must be", stated[name])
    _check_order(options)
    group = checked_group(stated["process_group"])
    return dict(options, skip_static_overflow=bool(stated["skip_static_overflow"]), process_group=group)


def _check_order(options):
    smallest, largest = options.get("min_loss_scale", 0.0), options["max_loss_scale"]
    if smallest > largest:
        raise AmpValueError(f"min_loss_scale ({smallest:g}) is greater than max_loss_scale ({largest:g}).")
    if options.get("growth_factor", 2.0) <= 1.0:
        raise AmpValueError("growth_factor must be greater than 1, not {:g}.".format(options["growth_factor"]))
    if options.get("backoff_factor", 0.5) >= 1.0:
        raise AmpValueError("backoff_factor must be less than 1, not {:g}.".format(options["backoff_factor"]))


def check_loss(loss):
    """Raise unless ``loss`` is a tensor."""
    if not isinstance(loss, torch.Tensor):
        raise AmpTypeError(f"amp.scale_loss expected the loss to be a tensor, not {type(loss).__name__}.")
