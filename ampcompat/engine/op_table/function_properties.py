"""What the engine and the diagnostics must know of torch's functions, by name: a row for each fact.

Importing this module does not import torch.
"""

from typing import NamedTuple, Optional


class FunctionProperties(NamedTuple):
    """What is true of a function, its method and its operator; a function without a row has the defaults."""

    is_view: bool = False  # its result has the values of the input, or some of them
    is_selection: bool = False  # elements of its inputs, as many as its inputs or its indices have
    is_property: bool = False
    changes_dtype: bool = False  # of its first argument
    follows_first: bool = False  # its result has the dtype of its first argument, whatever the others have
    is_outside_forward: bool = False  # it is not part of a forward pass
    is_uninitialized: bool = False  # its result has no values yet
    is_composed: bool = False  # a Python function of torch.nn.functional whose inner calls are recorded
    is_norm: bool = False  # it subtracts a mean
    is_softmax: bool = False  # or it begins with one
    is_reduction: bool = False  # it sums many numbers
    is_difference: bool = False  # of its inputs, which may cancel
    is_relative_to_input: bool = False  # its relative error equals the absolute error of its input
    is_bounded: bool = False  # its result for inf is finite where that in float32 is in range: it saturates or selects
    is_bounded_below: bool = False  # its result for -inf is finite
    removes_nan: bool = False  # or may do so
    keeps_sign: bool = False  # of inf
    is_usually_false: bool = False  # its boolean result, in a step in which all is finite
    singular_input: Optional[int] = None  # the position of the input that must not be 0
    numbers: tuple = ()  # (position, keyword) of those that the result's dtype must be able to hold
    source: tuple = ()  # ((position, keyword),) of the tensor that it writes into the first one, of the same dtype only
    promotes: bool = False  # a product that accepts inputs of different dtypes
    refuses_mixed: bool = False  # it raises if inputs have different dtypes; so does a product that does not promote


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
#: Facts and the names of the functions for which they hold, without a function's underscores, or of torch's operators.
_ROWS = (
    (dict(is_view=True), _DATA_MOVEMENT + " H T data mH mT real"),
    (dict(is_selection=True), "cat gather index index_select stack"),
    (dict(is_property=True), "H T data mH mT real"),
    (dict(changes_dtype=True), "bfloat16 double float half to type type_as"),
    (dict(follows_first=True), "__setitem__ embedding_bag index_fill masked_fill masked_scatter"),
    (dict(is_outside_forward=True), _OUTSIDE_FORWARD),
    (dict(is_uninitialized=True), "empty empty_like empty_permuted empty_strided new_empty new_empty_strided"),
    (dict(is_composed=True), "gumbel_softmax multi_head_attention_forward normalize"),
    (dict(is_norm=True, follows_first=True), "batch_norm group_norm instance_norm layer_norm"),
    (dict(is_softmax=True), "cross_entropy log_softmax softmax"),
    (
        dict(is_reduction=True),
        "cdist cumprod cumsum dist l1_loss logsumexp matrix_norm mean mse_loss norm prod std sum var vector_norm",
    ),
    (dict(is_difference=True), "add huber_loss l1_loss mse_loss rsub smooth_l1_loss sub subtract"),
    (dict(is_relative_to_input=True), "cross_entropy exp log_softmax logsumexp softmax"),
    (
        dict(is_bounded=True),
        "adaptive_max_pool2d amax amin arctan atan clamp clamp_max clamp_min clip erf hardsigmoid hardtanh masked_fill "
        "max max_pool1d max_pool2d max_pool3d maximum min minimum nan_to_num relu6 sigmoid tanh threshold topk where",
    ),
    (
        dict(is_bounded_below=True),
        "celu cross_entropy elu exp log_softmax logsumexp relu selu sigmoid softmax softplus",
    ),
    (dict(removes_nan=True), "masked_fill nan_to_num where"),
    (dict(keeps_sign=True), "add cat dropout float half leaky_relu mean radd relu softplus stack sum to"),
    (dict(is_usually_false=True), "any bitwise_not isinf isnan logical_not ne"),
    (dict(singular_input=0), "log log10 log2 rdiv reciprocal rsqrt rtruediv sqrt"),
    (dict(singular_input=1), "div divide true_divide truediv"),
    (dict(singular_input=2), "addcdiv"),
    (dict(numbers=((1, "value"),)), "fill_"),
    (dict(numbers=((1, "fill_value"),)), "fill_diagonal_ full_like"),
    (dict(numbers=((2, "fill_value"),)), "new_full"),
    (dict(numbers=((2, "value"),)), "masked_fill"),
    (dict(numbers=((3, "value"),)), "index_fill pad scatter"),
    (dict(numbers=((1, "min"), (2, "max"))), "clamp clip"),
    (dict(numbers=((1, "min"),)), "clamp_min"),
    (dict(numbers=((1, "max"),)), "clamp_max"),
    (dict(source=((2, "value"),)), "__setitem__"),
    (dict(source=((2, "values"),)), "index_put"),
    (dict(source=((2, "source"),)), "masked_scatter put"),
    (dict(source=((3, "source"),)), "index_add index_copy index_reduce"),
    (dict(source=((3, "src"),)), "scatter scatter_add scatter_reduce"),
    (dict(promotes=True), "addr"),
    (
        dict(refuses_mixed=True),
        "bilinear cdist cross dot grid_sample grid_sampler grid_sampler_2d grid_sampler_3d inner lerp tensordot vdot",
    ),
)
#: name -> ``FunctionProperties``
PROPERTIES = {}
for _facts, _names in _ROWS:
    for _name in _names.split():
        PROPERTIES[_name] = PROPERTIES.get(_name, FunctionProperties())._replace(**_facts)


def having(column):
    """Return the names of the functions for which a column is True."""
    return frozenset(name for name, facts in PROPERTIES.items() if getattr(facts, column))


def functional(column):
    """Return the functions of ``torch.nn.functional`` for which a column is True."""
    import torch

    return frozenset(getattr(torch.nn.functional, name) for name in having(column))
