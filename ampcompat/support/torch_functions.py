"""The kinds of torch functions, for code that observes calls."""

import torch

#: Functions whose result has the values of the input, or some of them.
VIEWS = frozenset(
    "view reshape transpose permute t T mT H mH swapaxes swapdims movedim moveaxis unsqueeze squeeze flatten unflatten "
    "expand expand_as contiguous clone detach chunk split unbind narrow select __getitem__ view_as reshape_as data "
    "real tile repeat flip roll index_select gather take unfold as_strided diagonal tensor_split repeat_interleave "
    "detach_ squeeze_ unsqueeze_ transpose_ alias_copy pin_memory cuda cpu requires_grad_ __iter__".split()
)
#: Functions that change the dtype of their first argument.
DTYPE_METHODS = frozenset("to type type_as float half double bfloat16".split())
#: Properties that return tensors with the values of the input.
PROPERTIES = frozenset(["T", "mT", "H", "mH", "data", "real"])
#: Functions that are not part of the forward pass.
IGNORED = frozenset(
    "backward grad register_hook retain_grad set_ __setattr__ __repr__ __format__ item tolist numpy empty empty_like "
    "new_empty share_memory_".split()
)
#: Python functions whose inner calls are recorded; for those in the op table, its row applies to all inner calls.
WALKED = frozenset(
    [
        torch.nn.functional.multi_head_attention_forward,
        torch.nn.functional.normalize,
        torch.nn.functional.gumbel_softmax,
    ]
)
