"""``ab --variant "NAME: OPTIONS"``: what a row of the report changes, in addition to or instead of the opt level."""

import argparse
import os
import re
import shlex

from ..abtest.row_names import UNCHANGED, script_name
from ..support.child_environment import ChildEnvironment
from .argument_parser import CommandParser
from .run_command import add_training_options, check_device, parse_layers, parse_level

DTYPES = ("float16", "bfloat16", "float32", "float64")
_dtype = {prefix + name: name for name in DTYPES for prefix in ("", "torch.")}.__getitem__
_boolean = {"True": True, "False": False}.__getitem__


def _number_or_dynamic(text):
    return text if text == "dynamic" else float(text)


def _names(text):
    return parse_layers(text).split(",")


def _split(text):
    """Return the words of a shell command, of which a list as `forecast` prints it, `[a, b]`, is one."""
    words = []
    for word in shlex.split(text):
        is_open = bool(words) and words[-1].startswith("keep_fp32=[") and not words[-1].endswith("]")
        words[-1:] = [words[-1] + word] if is_open else words[-1:] + [word]
    return words


#: The keywords of ``amp.initialize`` by the types of their values, with the name of the type; a test compares them with
#: its signature.
TYPES = (
    (_dtype, "one of " + ", ".join(DTYPES), "cast_model_type cast_model_outputs patch_torch_functions_type"),
    (
        _boolean,
        "True or False",
        "patch_torch_functions keep_batchnorm_fp32 master_weights skip_static_overflow raise_on_max_skips diagnose "
        "free_half_grads store_param_remainders allow_half_model process_group",
    ),
    (_number_or_dynamic, "a number", "loss_scale"),
    (float, "a number", "min_loss_scale max_loss_scale init_scale growth_factor backoff_factor"),
    (int, "a whole number", "growth_interval hysteresis max_skips num_losses"),
    (_names, "a list of layers", "keep_fp32"),
)
INITIALIZE = {name: (kind, told) for kind, told, names in TYPES for name in names.split()}

EXPECTED = "options of `run`, name=value of amp.initialize, VARIABLE=value, python=PATH or script=FILE"


def parse_variant(text):
    """Return ``(name, changes)``: fields of a ``PlannedRun``, ``options`` and ``script`` among them.

    Raises:
        argparse.ArgumentTypeError: for argparse. A wrong option of ``run`` ends the process with one line.
    """
    name, colon, rest = text.partition(":")
    name = name.strip()
    if not colon or not re.match(r"[\w+][\w .+-]*$", name):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME: OPTIONS, where the name has letters, digits, spaces and . _ + - only"
        )
    parser = CommandParser(prog="ampcompat ab", add_help=False)
    add_training_options(parser)
    given, settings = parser.parse_known_args(_split(rest))
    options = {key: getattr(given, key) for key in ("backend", "dtypes", "verbosity") if getattr(given, key)}
    told = {name: getattr(given, name) for name in ("diagnose", "store_param_remainders", "keep_fp32")}
    environment = ChildEnvironment(**told).to_env()
    changes = {"opt_level": given.opt_level, "environment": environment, "options": options}
    check_device(parser, given.device)
    if given.device is not None:
        changes["device"] = given.device
    for setting in settings:
        _apply(changes, name, *setting.partition("="))
    return name, changes


def _apply(changes, variant, name, equals, value):
    if name == "python" and value:
        changes["python"] = os.path.abspath(value) if os.sep in value else value
    elif name == "script" and value:
        changes["script"] = _checked_script(value)
    elif name in INITIALIZE and equals:
        changes["options"].setdefault("initialize", {})[name] = _value(variant, name, value)
    elif name.isupper() and name.isidentifier() and equals:
        changes["environment"][name] = value
    else:
        message = "variant {!r}: unknown option {!r}: expected {}"
        raise argparse.ArgumentTypeError(message.format(variant, name + equals + value, EXPECTED))


def _value(variant, name, text):
    kind, expected = INITIALIZE[name]
    try:
        return kind(text)
    except (KeyError, ValueError):
        message = "variant {!r}: {}={!r} is not {}"
        raise argparse.ArgumentTypeError(message.format(variant, name, text, expected)) from None


def _checked_script(path):
    if not os.path.exists(path):
        raise argparse.ArgumentTypeError(f"script not found: {path!r}")
    return path


def parse_against(path):
    """Return the variant that runs another script, without ampcompat's ``apex``."""
    return os.path.basename(path), {"script": _checked_script(path), "has_alias": False, "options": {}}


def choose_rows(levels, variants, baseline, command=None, uses_amp=True):
    """Return ``(rows, baseline)``: what each row changes, by name, including the baseline's row.

    If other scripts are compared with the ``command``, ``[script, …]``, its own row has the script's name. The levels
    of a script without ``amp`` (``uses_amp``) are compared with the unchanged script, also called "none".

    Raises:
        ValueError, argparse.ArgumentTypeError: two rows have the same name, or the baseline is neither a row nor a
        level.
    """
    levels = ([] if variants else ["O0", "O1", "O2", "O3"]) if levels is None else levels
    baseline = UNCHANGED if baseline == "none" else baseline or ("O0" if levels and uses_amp else UNCHANGED)
    names = levels + [name for name, _ in variants]
    twice = [name for name in names if names.count(name) > 1 or name == UNCHANGED]
    if twice:
        raise ValueError(f"two rows of the report have the name {twice[0]!r}")
    if baseline not in names + [UNCHANGED]:
        parse_level(baseline)
    rows = [(level, {"opt_level": level}) for level in levels] + variants
    if baseline not in names:
        rows.insert(0, (baseline, {"opt_level": None if baseline == UNCHANGED else baseline}))
    name = script_name(command) if command and any("script" in changes for _, changes in variants) else UNCHANGED
    if baseline == UNCHANGED and name not in names:
        rows[0], baseline = (name, rows[0][1]), name
    return dict(rows), baseline
