"""The opt levels as data, and the only place where options are merged and checked.

"float16" and "float32" are the two members of a ``DtypePair``. Tests, and old releases of torch without half kernels,
replace them by float32 and float64.
"""

from collections import OrderedDict
from typing import Any, NamedTuple, Optional, Union

import torch

from .errors import AmpError, AmpTypeError, AmpValueError

DYNAMIC = "dynamic"


class DtypePair(NamedTuple):
    """The low-precision dtype that a session computes in and the high-precision one that it keeps."""

    low: torch.dtype
    high: torch.dtype


HALF = DtypePair(torch.float16, torch.float32)
BFLOAT16 = DtypePair(torch.bfloat16, torch.float32)
STAND_IN = DtypePair(torch.float32, torch.float64)


class Policy(NamedTuple):
    """The settings of one call of ``initialize``. Immutable; ``_replace`` returns a changed copy.

    ``None`` means that the option does not apply to the level. ``loss_scale`` is a float or ``"dynamic"``.
    """

    opt_level: str
    description: str
    cast_model_type: Optional[torch.dtype]
    patch_torch_functions: bool
    patch_torch_functions_type: Optional[torch.dtype]
    keep_batchnorm_fp32: Optional[bool]
    master_weights: Optional[bool]
    loss_scale: Union[float, str]
    dtypes: DtypePair

    @property
    def casts_model(self):
        """Whether the weights themselves are cast below the high dtype."""
        return self.cast_model_type not in (None, self.dtypes.high)

    @property
    def weights_dtype(self):
        """The dtype that the weights are cast to, or None. With other dtypes, float32 weights get the high dtype."""
        return self.cast_model_type or (None if self.dtypes.high is torch.float32 else self.dtypes.high)

    @property
    def options(self):
        """The options in the order in which Apex printed them."""
        names = ["opt_level", "cast_model_type", "patch_torch_functions"]
        if self.dtypes.low is not torch.float16:
            names.append("patch_torch_functions_type")
        names += ["keep_batchnorm_fp32", "master_weights", "loss_scale"]
        return OrderedDict([("enabled", True)] + [(name, getattr(self, name)) for name in names])


def _row(opt_level, description, dtypes, **options):
    row = dict.fromkeys(("cast_model_type", "patch_torch_functions_type", "keep_batchnorm_fp32", "master_weights"))
    row.update(patch_torch_functions=False, loss_scale=1.0)
    row.update(options)
    return Policy(opt_level=opt_level, description=description, dtypes=dtypes, **row)


OPT_LEVELS = OrderedDict(
    (row.opt_level, row)
    for row in (
        _row(
            "O0",
            "float32 throughout: the baseline.",
            HALF,
            cast_model_type=torch.float32,
            keep_batchnorm_fp32=None,
            master_weights=False,
        ),
        _row(
            "O1",
            "float32 weights; each torch function runs in the precision that suits it.",
            HALF,
            patch_torch_functions=True,
            patch_torch_functions_type=torch.float16,
            loss_scale=DYNAMIC,
        ),
        _row(
            "O2",
            "half weights except batch norm, float32 master weights in the optimizer.",
            HALF,
            cast_model_type=torch.float16,
            keep_batchnorm_fp32=True,
            master_weights=True,
            loss_scale=DYNAMIC,
        ),
        _row(
            "O3",
            "half throughout: to measure the maximum speed, not for accuracy.",
            HALF,
            cast_model_type=torch.float16,
            keep_batchnorm_fp32=False,
            master_weights=False,
        ),
        _row(
            "O4",
            "O1 with bfloat16, which needs no loss scaling.",
            BFLOAT16,
            patch_torch_functions=True,
            patch_torch_functions_type=torch.bfloat16,
        ),
        _row(
            "O5",
            "O2 with bfloat16, which needs no loss scaling.",
            BFLOAT16,
            cast_model_type=torch.bfloat16,
            keep_batchnorm_fp32=True,
            master_weights=True,
        ),
    )
)


def parse_dtypes(text):
    """Return the ``DtypePair`` for a string such as "float32,float64", or None for None.

    Raises:
        AmpValueError: the string is not a pair of dtypes.
    """
    if text is None:
        return None
    found = [getattr(torch, name.strip(), None) for name in text.split(",")]
    if len(found) != 2 or not all(isinstance(dtype, torch.dtype) for dtype in found):
        raise AmpValueError(f"Expected two floating dtypes, low and high, such as float16,float32, not {text!r}.")
    return DtypePair(*found)


def level_named(opt_level, dtypes=None):
    """Return the row of a level, translated to another pair of dtypes if one is given.

    Raises:
        AmpError: no such level; the message lists the levels.
    """
    row = OPT_LEVELS.get(opt_level) if isinstance(opt_level, str) else None
    if row is None:
        raise AmpError(
            "Unknown opt_level {!r}: expected one of {}. The first character is the capital letter O, "
            "not the number zero.".format(opt_level, ", ".join(map(repr, OPT_LEVELS)))
        )
    if dtypes is None or dtypes == row.dtypes:
        return row
    stand_in = {row.dtypes.low: dtypes.low, row.dtypes.high: dtypes.high, None: None}
    return row._replace(
        cast_model_type=stand_in[row.cast_model_type],
        patch_torch_functions_type=stand_in[row.patch_torch_functions_type],
        dtypes=dtypes,
    )


def resolve(opt_level="O1", keywords=None, command_line=None, dtypes=None):
    """Merge the level's defaults, the script's keywords and the command line (the last wins), and check the result.

    Args:
        opt_level: the level that the script passed.
        keywords: options given to ``initialize``; those that are None do not override.
        command_line: the same options, from ``--opt-level`` and the like. It may contain ``opt_level`` itself; then the
            script's keywords that do not apply to that level are left out.
        dtypes: a ``DtypePair`` that replaces the level's own.

    Returns:
        (defaults, policy): the level's row and the row after the overrides.

    Raises:
        AmpError: an unknown level, or an override that makes no sense for it, with the reason.
    """
    stated = _given(keywords)
    forced = _given(command_line)
    level = forced.pop("opt_level", None)
    if level is not None and level != opt_level:
        level_named(opt_level)  # an unknown level in the script is still an error
        stated = {name: value for name, value in stated.items() if name in _LEVEL_FREE}
    defaults = level_named(level or opt_level, dtypes)
    policy = defaults
    for name, value in list(stated.items()) + list(forced.items()):
        policy = _overridden(policy, name, value)
    return defaults, policy


# Options that mean the same at every level: they survive when the command line changes the level.
_LEVEL_FREE = frozenset(["loss_scale"])


def _given(options):
    return {name: value for name, value in (options or {}).items() if value is not None}


def _overridden(policy, name, value):
    parse = _PARSERS.get(name)
    if parse is None:
        raise AmpError("Unknown option {!r}: expected one of {}.".format(name, ", ".join(sorted(_PARSERS))))
    value = parse(name, value)
    reason = _objection(policy, name, value)
    if reason:
        raise AmpError(f"{name}={value} makes no sense with opt_level {policy.opt_level}: {reason}")
    policy = policy._replace(**{name: value})
    if name in ("cast_model_type", "patch_torch_functions_type") and value not in (None, policy.dtypes.high):
        policy = policy._replace(dtypes=DtypePair(value, policy.dtypes.high))
    return policy


def _objection(policy, name, value):
    """Return why an override is not possible at the level, or None if it is."""
    by_function = policy.opt_level in ("O1", "O4")
    weights_level = "O2" if policy.opt_level == "O1" else "O5"
    if by_function and name == "cast_model_type" and value not in (None, policy.dtypes.high):
        return f"it casts around functions and leaves the weights in float32. To cast the weights, use {weights_level}."
    if by_function and name == "keep_batchnorm_fp32" and value is not None:
        return "its weights, batch norm's too, are float32 already. Leave keep_batchnorm_fp32 out."
    if by_function and name == "master_weights" and value:
        return "its weights are float32, so they are their own masters. Leave master_weights out."
    if not by_function and name == "patch_torch_functions" and value:
        return "it casts the model instead of the functions. To cast around functions, use O1 (or O4 for bfloat16)."
    if not by_function and name == "patch_torch_functions_type" and value is not None:
        return "it patches no functions. Use O1 or O4, or cast_model_type for the dtype of the weights."
    return None


def _parse_dtype(name, value):
    if value is False:
        return None
    if not isinstance(value, torch.dtype) or not torch.empty(0, dtype=value).is_floating_point():
        raise AmpTypeError(f"{name} must be a floating torch.dtype, not {value!r}.")
    return value


def _parse_bool(name, value):
    parsed = {"True": True, "true": True, "False": False, "false": False}.get(value, value)
    if not isinstance(parsed, bool):
        raise AmpTypeError(f"{name} must be True, False or None (or such a string), not {value!r}.")
    return parsed


def _parse_loss_scale(name, value):
    if value == DYNAMIC:
        return value
    return parse_scale(name, value)


def parse_scale(name, value: Any):
    """Return a loss scale as a positive finite float; strings, as from argparse, are parsed."""
    expected = "{} must be a positive number{}, not {!r}.".format(
        name, ' or "dynamic"' if name == "loss_scale" else "", value
    )
    try:
        scale = float(value)
    except (TypeError, ValueError):
        raise AmpTypeError(expected) from None
    if not 0.0 < scale < float("inf"):
        raise AmpValueError(expected)
    return scale


_PARSERS = {
    "cast_model_type": _parse_dtype,
    "patch_torch_functions": _parse_bool,
    "patch_torch_functions_type": _parse_dtype,
    "keep_batchnorm_fp32": _parse_bool,
    "master_weights": _parse_bool,
    "loss_scale": _parse_loss_scale,
}

#: The options that an opt level sets, and that keywords of ``amp.initialize`` override.
LEVEL_OPTIONS = tuple(_PARSERS)
