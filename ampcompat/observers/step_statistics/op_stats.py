"""``OpStats``: the observer of ``run --op-stats``, and the table that it prints when the run ends."""

import atexit
import json
import os
import weakref
from typing import NamedTuple, Optional

import torch

from ...engine.casting import torch_compile
from ...engine.models import cast_weights, forward_conversion
from ...errors import AmpError
from ...support import files
from ...support.notices import is_first_rank
from ...support.observer_interface import Observer
from ...support.torch_compat import features
from ...support.torch_compat.torch_names import dtype_name
from ..places import ModuleStack
from . import op_reasons
from .op_counter import OpCounter

OLD_TORCH = "--op-stats needs torch 2.1 or newer, whose hooks also run after a layer raises an error; this is {}."


class Place(NamedTuple):
    """The facts about the place of a call that determine its dtype.

    ``level``: the opt level of the model, or None outside every model that was passed to ``amp.initialize``. ``kept``:
    the layer of ``keep_fp32`` that it is in, or None. ``is_wide_norm``: whether it is a norm with float32 weights.
    """

    level: Optional[str]
    kept: Optional[str] = None
    is_wide_norm: bool = False


class CountedCalls(NamedTuple):
    """One line of the table. ``dtype``: one of ``op_reasons.DTYPES``; ``rule``: the rule of the op table, or None."""

    function: str
    dtype: str
    calls: int
    emulated: bool
    rule: Optional[str]
    reason: str


class OpStats(Observer):
    """Counts the calls of a session, and prints the table when the session or the process ends.

    Args:
        path: a JSON file that is also written then, or None.
        prints: whether the table is printed.

    Raises:
        AmpError: this torch has no function modes.
    """

    def __init__(self, path=None, prints=True):
        if not features.is_version_within(oldest="2.1"):
            raise AmpError(OLD_TORCH.format(features.version()))
        self._path, self._prints = path, prints
        self._modules = ModuleStack()
        self._counter = OpCounter(self._are_casts_on, self._place)
        self._session = lambda: None
        self._places = {}  # OpPlace -> Place
        self._kept = {}  # the number of a model -> names of its layers in ``keep_fp32``
        self._process = None
        self._steps = weakref.WeakKeyDictionary()  # record -> count
        self.steps = 0

    def start(self, session):
        """Start counting. Call it before the session's first ``initialize``."""
        self._session, self._process = weakref.ref(session), os.getpid()
        self._modules.start()
        self._counter.start()
        atexit.register(self.finish)

    # -- callbacks of the session --------------------------------------------------------------------------------------

    def initialized(self, session, models, optimizers):
        """Record the names of the modules and which are kept in float32, and count from now on."""
        self._counter.is_paused = False
        self._modules.add_models(models)
        self._places.clear()
        for number, model in self._modules.models():
            self._kept[number] = _kept_layers(model, session.policy_of(model))

    def before_backward(self, backward):
        self._counter.is_paused = True

    def after_backward(self, backward):
        self._counter.is_paused = False

    def before_step(self, record):
        self._counter.is_paused = True

    def after_step(self, record):
        self._counter.is_paused = False
        self._steps[record] = self._steps.get(record, 0) + 1
        self.steps = max(self.steps, self._steps[record])

    def closed(self, session):
        self.finish()

    def cancel(self):
        """Stop counting; return the session, or None if counting has already ended."""
        session, self._session = self._session(), lambda: None
        atexit.unregister(self.finish)
        self._counter.stop()
        self._modules.stop()
        return session

    def finish(self):
        """Stop counting; print the table and write the file, once."""
        if self._process != os.getpid():  # forked: it is the parent's
            return
        session = self.cancel()
        if session is None or not is_first_rank():
            return
        calls = self.calls(session)
        if self._prints:
            print(op_reasons.table(calls, self.steps, *_level_and_backend(session)), flush=True)
        if self._path is not None:
            level, backend = _level_and_backend(session)
            found = {"level": level, "backend": backend, "steps": self.steps}
            found["calls"] = [each._asdict() for each in calls]
            files.write(self._path, json.dumps(found, indent=1) + "\n")

    def calls(self, session):
        """Return the current ``CountedCalls`` of a session; functions with the most calls come first."""
        found, names = {}, WrittenNames()
        for kind, count in self._counter.counts.items():
            name = names.name_of(kind.function) if kind.row is None else readable(_row_name(kind.row))
            dtype = kind.low or (kind.dtypes[0] if len(kind.dtypes) == 1 else None)
            dtype = op_reasons.MIXED if dtype is None else dtype_name(dtype)
            rule = None if kind.row is None else kind.row.rule
            key = (name, dtype, kind.low is not None, rule, op_reasons.reason(kind, session))
            found[key] = found.get(key, 0) + count
        lines = [CountedCalls(key[0], key[1], count, *key[2:]) for key, count in found.items()]
        totals = {}
        for line in lines:
            totals[line.function] = totals.get(line.function, 0) + line.calls
        return sorted(lines, key=lambda line: (-totals[line.function], line.function, -line.calls, line.reason))

    # -- the reasons ---------------------------------------------------------------------------------------------------

    def _are_casts_on(self):
        session = self._session()
        return session is not None and session.process_casts.backend.active()

    def _place(self):
        where = self._modules.current()[0]
        if where not in self._places:
            self._places[where] = self._find_place(where)
        return self._places[where]

    def _find_place(self, where):
        model = dict(self._modules.models()).get(where.model)
        policy = None if model is None else self._session().policy_of(model)
        if policy is None:
            return Place(None)
        module = self._modules.module()
        own = [param.dtype for param in module.parameters(recurse=False) if param.is_floating_point()]
        is_wide_norm = policy.casts_model and bool(own) and all(dtype is policy.dtypes.high for dtype in own)
        return Place(policy.opt_level, where.layer_of(self._kept.get(where.model, ())), is_wide_norm)


def _kept_layers(model, policy):
    """Return the names of the modules that ``keep_fp32`` keeps in float32; "" is the model."""
    kept = []
    if policy is None or not (policy.casts_model or policy.patch_torch_functions):
        return kept
    for name, module in model.named_modules():
        mark = vars(module).get(forward_conversion.MARK)
        is_norm = policy.keep_batchnorm_fp32 and cast_weights.is_batch_norm(module)
        if mark is not None and mark.input_dtype is policy.dtypes.high and not is_norm:
            kept.append(name)
    return kept


def _row_name(row):
    owner = row.owner if isinstance(row.owner, str) else getattr(row.owner, "__name__", type(row.owner).__name__)
    return f"{owner}.{row.name}"


def _level_and_backend(session):
    """Return the opt level of the newest ``initialize`` and the cast backend; None if functions do not cast."""
    level = None if session.policy is None else session.policy.opt_level
    return level, None if session.choice is None else session.choice.name


#: Where functions are looked up; the names that scripts use most come first.
_OWNERS = (
    ("torch.nn.functional", torch.nn.functional),
    ("torch", torch),
    *(("torch.Tensor", kind) for kind in torch.Tensor.__mro__ if kind is not object),
    ("torch.linalg", getattr(torch, "linalg", None)),
    ("torch.special", getattr(torch, "special", None)),
    ("torch.fft", getattr(torch, "fft", None)),
    ("torch.sparse", torch.sparse),
)
#: Prefixes of torch's own names of functions, and how scripts write them.
_SHORT = (("torch.nn.functional.", "F."), ("torch.Tensor.", "Tensor."), ("torch._VF.", "torch."))
#: The operators whose methods have a different name.
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "div": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "matmul": "@", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|",
    "xor": "^",
}  # fmt: skip
#: The methods that operators call, and the operators.
_METHODS_OF_OPERATORS = {
    "torch.Tensor." + {"truediv": "true_divide"}.get(name, name) + end: ("i" if end else "") + name
    for name in _OPERATORS
    for end in ("", "_")
    if name not in ("floordiv", "mod")
}
_METHODS_OF_OPERATORS["torch.Tensor.neg"] = "neg"


def readable(name):
    """Return the dotted name of a function as users write it: ``F.conv2d``, ``torch.matmul``, ``a @ b``."""
    last = name.rpartition(".")[2]
    if last.startswith("__") and last.endswith("__"):
        bare = last.strip("_")
        for plain, form in ((bare, "a {} b"), (bare[1:], "a {} b" if bare[:1] == "r" else "a {}= b")):
            if plain in _OPERATORS:
                return form.format(_OPERATORS[plain])
        return {"neg": "-a", "invert": "~a", "setitem": "a[i] = b"}.get(bare, last)
    for prefix, short in _SHORT:
        if name.startswith(prefix):
            return short + name[len(prefix) :]
    return name


class WrittenNames:
    """The names of torch's functions, whether or not they are currently replaced by wrappers."""

    def __init__(self):
        self._found = {}
        named = [
            (f"{owner_name}.{name}", function)
            for owner_name, owner in _OWNERS
            for name, function in (list(vars(owner).items()) if owner is not None else ())
            if callable(function) and not isinstance(function, type)
        ]
        for name, function in sorted(named, key=lambda each: each[0].endswith("__")):  # other names first
            self._found.setdefault(torch_compile.original(function), name)

    def name_of(self, function):
        """Return the name of one of torch's functions; if it is not found, its own name."""
        found = self._found.get(function)
        if found is None:
            return getattr(function, "__name__", str(function))
        if found in _METHODS_OF_OPERATORS:
            found = f"torch.Tensor.__{_METHODS_OF_OPERATORS[found]}__"
        return readable(found)
