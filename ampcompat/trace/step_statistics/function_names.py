"""The names of torch's functions as users write them."""

import torch

from ...engine.casting import torch_compile

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
