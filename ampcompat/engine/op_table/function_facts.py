"""What the tools must know of torch's functions, by name: a row for functions of which the same is true.

Importing this module does not import torch.
"""

from typing import NamedTuple, Optional


class FunctionFacts(NamedTuple):
    """What is true of a function, its method and its operator; a function without a row has the defaults."""

    is_view: bool = False  # its result has the values of the input, or some of them
    is_property: bool = False
    changes_dtype: bool = False  # of its first argument
    is_outside_forward: bool = False  # it is not part of a forward pass
    is_composed: bool = False  # a Python function of torch.nn.functional whose inner calls are recorded
    is_unspecific: bool = False  # its name says less than those of the functions that it calls
    is_norm: bool = False  # it subtracts a mean
    is_softmax: bool = False  # or it begins with one
    is_reduction: bool = False  # it sums many numbers
    is_difference: bool = False  # of its inputs, which may cancel
    is_relative_to_input: bool = False  # its relative error equals the absolute error of its input
    is_bounded_below: bool = False  # its result for -inf is finite
    keeps_sign: bool = False  # of inf
    singular_input: Optional[int] = None  # the position of the input that must not be 0
    numbers: tuple = ()  # (position, keyword) of those that the result's dtype must be able to hold


_DATA_MOVEMENT = (
    "__getitem__ __iter__ alias_copy as_strided chunk clone contiguous cpu cuda detach detach_ diagonal expand "
    "expand_as flatten flip gather index_select moveaxis movedim narrow permute pin_memory repeat repeat_interleave "
    "requires_grad_ reshape reshape_as roll select split squeeze squeeze_ swapaxes swapdims t take tensor_split "
    "tile transpose transpose_ unbind unflatten unfold unsqueeze unsqueeze_ view view_as"
)
_OUTSIDE_FORWARD = (
    "__format__ __repr__ __setattr__ backward empty empty_like grad item new_empty numpy register_hook retain_grad "
    "set_ share_memory_ tolist"
)
_ROWS = (
    (_DATA_MOVEMENT, FunctionFacts(is_view=True)),
    ("H T data mH mT real", FunctionFacts(is_view=True, is_property=True)),
    ("bfloat16 double type type_as", FunctionFacts(changes_dtype=True)),
    ("float half to", FunctionFacts(changes_dtype=True, keeps_sign=True)),
    (_OUTSIDE_FORWARD, FunctionFacts(is_outside_forward=True)),
    ("multi_head_attention_forward", FunctionFacts(is_composed=True, is_unspecific=True)),
    ("normalize gumbel_softmax", FunctionFacts(is_composed=True)),
    ("batch_norm group_norm instance_norm layer_norm", FunctionFacts(is_norm=True)),
    (
        "cross_entropy log_softmax softmax",
        FunctionFacts(is_softmax=True, is_relative_to_input=True, is_bounded_below=True),
    ),
    ("exp", FunctionFacts(is_relative_to_input=True, is_bounded_below=True)),
    ("logsumexp", FunctionFacts(is_reduction=True, is_relative_to_input=True, is_bounded_below=True)),
    ("celu elu selu sigmoid", FunctionFacts(is_bounded_below=True)),
    ("relu softplus", FunctionFacts(is_bounded_below=True, keeps_sign=True)),
    ("cat dropout leaky_relu radd stack", FunctionFacts(keeps_sign=True)),
    ("mean sum", FunctionFacts(is_reduction=True, keeps_sign=True)),
    (
        "cdist cumprod cumsum dist matrix_norm norm prod std var vector_norm",
        FunctionFacts(is_reduction=True),
    ),
    ("l1_loss mse_loss", FunctionFacts(is_reduction=True, is_difference=True)),
    ("huber_loss rsub smooth_l1_loss sub subtract", FunctionFacts(is_difference=True)),
    ("add", FunctionFacts(is_difference=True, keeps_sign=True)),
    ("log log10 log2 rdiv reciprocal rsqrt rtruediv sqrt", FunctionFacts(singular_input=0)),
    ("div divide true_divide truediv", FunctionFacts(singular_input=1)),
    ("addcdiv", FunctionFacts(singular_input=2)),
    ("fill_", FunctionFacts(numbers=((1, "value"),))),
    ("fill_diagonal_", FunctionFacts(numbers=((1, "fill_value"),))),
    ("full_like", FunctionFacts(numbers=((1, "fill_value"),))),
    ("new_full", FunctionFacts(numbers=((2, "fill_value"),))),
    ("masked_fill", FunctionFacts(numbers=((2, "value"),))),
    ("index_fill pad scatter", FunctionFacts(numbers=((3, "value"),))),
    ("clamp clip", FunctionFacts(numbers=((1, "min"), (2, "max")))),
    ("clamp_min", FunctionFacts(numbers=((1, "min"),))),
    ("clamp_max", FunctionFacts(numbers=((1, "max"),))),
)
#: name -> ``FunctionFacts``
FACTS = {name: facts for names, facts in _ROWS for name in names.split()}


def having(column):
    """Return the names of the functions for which a column is True."""
    return frozenset(name for name, facts in FACTS.items() if getattr(facts, column))


def functional(column):
    """Return the functions of ``torch.nn.functional`` for which a column is True."""
    import torch

    return frozenset(getattr(torch.nn.functional, name) for name in having(column))
