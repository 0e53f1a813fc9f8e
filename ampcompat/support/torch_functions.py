"""What kinds of functions torch has, for those who observe its calls, and their names as users write them."""

import functools

import torch

#: Functions whose result has the numbers of its input, or some of them.
VIEWS = frozenset(
    "view reshape transpose permute t T mT H mH swapaxes swapdims movedim moveaxis unsqueeze squeeze flatten unflatten "
    "expand expand_as contiguous clone detach chunk split unbind narrow select __getitem__ view_as reshape_as data "
    "real tile repeat flip roll index_select gather take unfold as_strided diagonal tensor_split repeat_interleave "
    "detach_ squeeze_ unsqueeze_ transpose_ alias_copy pin_memory cuda cpu requires_grad_ __iter__".split()
)
#: Functions that change the dtype of their first argument.
CASTS = frozenset("to type type_as float half double bfloat16".split())
#: Properties whose values are tensors with the numbers of the input.
PROPERTIES = frozenset(["T", "mT", "H", "mH", "data", "real"])
#: Functions that compute nothing of the forward pass.
IGNORED = frozenset(
    "backward grad register_hook retain_grad set_ __setattr__ __repr__ __format__ item tolist numpy empty empty_like "
    "new_empty share_memory_".split()
)
#: Functions in Python that are recorded call by call; of those in the op table its row decides for all calls within.
WALKED = frozenset(
    [
        torch.nn.functional.multi_head_attention_forward,
        torch.nn.functional.normalize,
        torch.nn.functional.gumbel_softmax,
    ]
)

#: Prefixes of the names that torch gives its functions, and how scripts write them.
_SHORT = (("torch.nn.functional.", "F."), ("torch.Tensor.", "Tensor."), ("torch._VF.", "torch."))
#: The operators whose methods have a name of their own.
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "div": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "matmul": "@", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|",
    "xor": "^",
}  # fmt: skip
_METHODS_OF_OPERATORS = {
    "torch.Tensor." + {"truediv": "true_divide"}.get(name, name) + end: ("i" if end else "") + name
    for name in _OPERATORS
    for end in ("", "_")
    if name not in ("floordiv", "mod")
}


def readable(name):
    """Return the dotted name of a function as users write it: ``F.conv2d``, ``torch.matmul``, ``a @ b``."""
    last = name.rpartition(".")[2]
    if last.startswith("__") and last.endswith("__"):
        bare = last.strip("_")
        for plain, form in ((bare, "a {} b"), (bare[1:], "a {} b" if bare[:1] == "r" else "a {}= b")):
            if plain in _OPERATORS:
                return form.format(_OPERATORS[plain])
        return {"neg": "-a", "abs": "abs(a)", "invert": "~a", "getitem": "a[i]", "setitem": "a[i] = b"}.get(bare, last)
    for prefix, short in _SHORT:
        if name.startswith(prefix):
            return short + name[len(prefix) :]
    return name


@functools.lru_cache(maxsize=None)
def name_of(function):
    """Return the name of one of torch's functions as users write it; that of a function without one in its module."""
    found = torch.overrides.resolve_name(function)
    if found is None:
        return getattr(function, "__name__", str(function))
    if found in _METHODS_OF_OPERATORS:  # an operator is a call of its method
        found = f"torch.Tensor.__{_METHODS_OF_OPERATORS[found]}__"
    return readable(found)
