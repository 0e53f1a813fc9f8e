"""Sample arguments for every name in the op table: float64 tensors, and the devices and dtypes they are cast to."""

import torch


def t(*shape, **options):
    """Return float64 values between 0.1 and 0.9, the same for the same shape: inside every function's domain."""
    start = options.get("start", 0.0)
    count = 1
    for size in shape:
        count *= size
    values = torch.arange(count, dtype=torch.float64) * 0.6180339887 + 0.2113 * (len(shape) + 1) + start
    return (0.1 + 0.8 * (values - values.floor())).reshape(shape)


def spd(size=3):
    """Return a well-conditioned symmetric positive definite matrix."""
    a = t(size, size)
    return a @ a.t() + 2.0 * torch.eye(size, dtype=torch.float64)


def indices(*values):
    """Return an integer tensor."""
    return torch.tensor(list(values))


class Case:
    """Arguments for one name.

    ``compares`` is False if results are unique only up to sign or order, ``differentiable`` if torch has no derivative
    for one of the arguments.
    """

    def __init__(self, make, compares=True, differentiable=True, **kwargs):
        self.make = make
        self.kwargs = kwargs
        self.compares = compares
        self.differentiable = differentiable


def rnn_weights(gates):
    """Return input, hidden weights and both biases of one layer, 4 features to 3."""
    return [t(3 * gates, 4) - 0.5, t(3 * gates, 3) - 0.5, t(3 * gates), t(3 * gates, start=0.3)]


#: Names, and the case of each.
_CASES = {
    (
        "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan norm prod sum log1p cpu arccos "
        "arcsin nuclear_norm std var std_mean var_mean softplus gelu normalize vector_norm matrix_norm pdist "
        "matrix_rank svdvals cov corrcoef"
    ): Case(lambda: (t(3, 4),)),
    "frobenius_norm softmax log_softmax softmin cumprod cumsum logsumexp logcumsumexp": Case(lambda: (t(3, 4), 1)),
    "svd qr": Case(lambda: (t(3, 4),), compares=False),
    "pow __pow__ __rpow__ __rdiv__ __rtruediv__ __radd__ __rsub__ __rmul__ __ipow__": Case(lambda: (t(3, 4), 2.0)),
    "__rmod__ __rfloordiv__": Case(lambda: (t(3, 4), 2.0), differentiable=False),
    (
        "add sub rsub mul div eq equal ge gt le lt ne atan2 arctan2 subtract multiply divide true_divide greater "
        "greater_equal less less_equal not_equal __add__ __iadd__ __sub__ __isub__ __mul__ __imul__ __div__ "
        "__idiv__ __truediv__ __itruediv__ __mod__ __imod__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ dist "
        "cosine_similarity pairwise_distance l1_loss mse_loss smooth_l1_loss huber_loss kl_div poisson_nll_loss "
        "binary_cross_entropy_with_logits binary_cross_entropy vecdot polar"
    ): Case(lambda: (t(3, 4), t(3, 4, start=0.3))),
    # Far from whole quotients, where rounding would decide.
    "__floordiv__ __ifloordiv__": Case(lambda: (t(3, 4) + 3.3, torch.full((3, 4), 3.0).double()), differentiable=False),
    "conv1d": Case(lambda: (t(2, 3, 6), t(4, 3, 3), t(4))),
    "conv2d": Case(lambda: (t(2, 3, 5, 5), t(4, 3, 3, 3), t(4))),
    "conv3d": Case(lambda: (t(1, 2, 4, 4, 4), t(3, 2, 3, 3, 3), t(3))),
    "convolution": Case(lambda: (t(2, 3, 5, 5), t(4, 3, 3, 3), t(4), (1, 1), (0, 0), (1, 1), False, (0, 0), 1)),
    "conv_transpose1d": Case(lambda: (t(2, 3, 6), t(3, 4, 3), t(4))),
    "conv_transpose2d": Case(lambda: (t(2, 3, 5, 5), t(3, 4, 3, 3), t(4))),
    "conv_transpose3d": Case(lambda: (t(1, 2, 4, 4, 4), t(2, 3, 3, 3, 3), t(3))),
    "conv_tbc": Case(lambda: (t(6, 2, 3), t(3, 3, 4), t(4))),
    "linear": Case(lambda: (t(3, 4), t(5, 4), t(5))),
    "prelu": Case(lambda: (t(3, 4) - 0.5, t(1))),
    "addmm": Case(lambda: (t(3, 5), t(3, 4), t(4, 5))),
    "addmv": Case(lambda: (t(3), t(3, 4), t(4))),
    "addr": Case(lambda: (t(3, 4), t(3), t(4))),
    "matmul": Case(lambda: (t(2, 3, 4), t(4, 5))),
    "__matmul__ mm spmm": Case(lambda: (t(3, 4), t(4, 5))),
    "__rmatmul__": Case(lambda: (t(4, 5), t(3, 4))),
    "mv": Case(lambda: (t(3, 4), t(4))),
    "addbmm": Case(lambda: (t(3, 5), t(2, 3, 4), t(2, 4, 5))),
    "baddbmm": Case(lambda: (t(2, 3, 5), t(2, 3, 4), t(2, 4, 5))),
    "bmm": Case(lambda: (t(2, 3, 4), t(2, 4, 5))),
    "chain_matmul": Case(lambda: (t(3, 4), t(4, 5), t(5, 2))),
    "multi_dot": Case(lambda: ([t(3, 4), t(4, 5), t(5, 2)],)),
    "einsum": Case(lambda: ("bij,bjk->bik", t(2, 3, 4), t(2, 4, 5))),
    "linear_cross_entropy": Case(lambda: (t(3, 4), t(5, 4), indices(0, 3, 1))),
    "matrix_power": Case(lambda: (t(3, 3), 2)),
    "scaled_dot_product_attention": Case(lambda: (t(2, 3, 4), t(2, 5, 4), t(2, 5, 4, start=0.3))),
    "interpolate": Case(lambda: (t(1, 2, 4, 4),), scale_factor=2, mode="bilinear", align_corners=False),
    "upsample": Case(lambda: (t(1, 2, 4, 4),), scale_factor=2, mode="nearest"),
    "upsample_nearest upsample_bilinear": Case(lambda: (t(1, 2, 4, 4),), scale_factor=2),
    "grid_sample": Case(lambda: (t(1, 2, 4, 4), t(1, 3, 3, 2) - 0.5), align_corners=False),
    "grid_sampler grid_sampler_2d": Case(lambda: (t(1, 2, 4, 4), t(1, 3, 3, 2) - 0.5, 0, 0, False)),
    "grid_sampler_3d": Case(lambda: (t(1, 2, 3, 3, 3), t(1, 2, 2, 2, 3) - 0.5, 0, 0, False)),
    "layer_norm": Case(lambda: (t(3, 4), (4,), t(4), t(4, start=0.3))),
    "native_layer_norm": Case(lambda: (t(3, 4), (4,), t(4), t(4, start=0.3), 1e-5)),
    "rms_norm": Case(lambda: (t(3, 4), (4,), t(4))),
    "group_norm": Case(lambda: (t(2, 4, 3), 2, t(4), t(4, start=0.3))),
    "local_response_norm": Case(lambda: (t(2, 4, 3), 2)),
    "renorm": Case(lambda: (t(3, 4), 2.0, 0, 0.5)),
    "cdist inner": Case(lambda: (t(3, 4), t(5, 4))),
    "cosine_embedding_loss": Case(lambda: (t(3, 4), t(3, 4, start=0.3), indices(1, -1, 1))),
    "cross_entropy nll_loss multi_margin_loss": Case(lambda: (t(3, 4), indices(0, 2, 3))),
    "multilabel_margin_loss": Case(lambda: (t(2, 4), torch.tensor([[3, 0, -1, 1], [0, -1, 2, 3]]))),
    "multilabel_soft_margin_loss": Case(lambda: (t(2, 3), t(2, 3, start=0.3))),
    "soft_margin_loss": Case(lambda: (t(2, 3), indices([1, -1, 1], [-1, 1, -1]))),
    "hinge_embedding_loss": Case(lambda: (t(4), indices(1, -1, 1, -1))),
    "margin_ranking_loss": Case(lambda: (t(4), t(4, start=0.3), indices(1, -1, 1, -1))),
    "triplet_margin_loss triplet_margin_with_distance_loss gaussian_nll_loss addcdiv addcmul lerp": Case(
        lambda: (t(3, 4), t(3, 4, start=0.3), t(3, 4, start=0.5))
    ),
    "ctc_loss": Case(lambda: (t(5, 2, 4).log_softmax(2), indices([1, 2], [2, 3]), indices(5, 5), indices(2, 2))),
    "quantile nanquantile": Case(lambda: (t(3, 4), 0.4)),
    "stft": Case(lambda: (t(32), 8), return_complex=True, window=t(8)),
    "view_as_complex": Case(lambda: (t(3, 2),)),
    "cross": Case(lambda: (t(4, 3), t(4, 3, start=0.3)), dim=1),
    "bilinear": Case(lambda: (t(2, 3), t(2, 4), t(5, 3, 4), t(5))),
    "dot vdot": Case(lambda: (t(4), t(4, start=0.3))),
    "tensordot": Case(lambda: (t(3, 4), t(4, 5)), dims=1),
    "index_put": Case(lambda: (t(4, 3), (indices(0, 2),), t(2, 3))),
    "index_copy": Case(lambda: (t(4, 3), 0, indices(0, 2), t(2, 3))),
    "scatter_add": Case(lambda: (t(4), 0, indices(0, 2), t(2))),
    "avg_pool3d max_pool3d adaptive_avg_pool3d adaptive_max_pool3d": Case(lambda: (t(1, 2, 4, 4, 4), 2)),
    "max_unpool1d": Case(lambda: (t(1, 1, 2), torch.tensor([[[1, 3]]]), 2)),
    "max_unpool2d": Case(lambda: (t(1, 1, 1, 2), torch.tensor([[[[1, 3]]]]), (2, 2))),
    "max_unpool3d": Case(lambda: (t(1, 1, 1, 1, 2), torch.tensor([[[[[1, 3]]]]]), (2, 2, 2))),
    "fractional_max_pool2d": Case(
        lambda: (t(1, 2, 6, 6), 2),
        differentiable=False,
        output_size=3,
        _random_samples=torch.full((1, 2, 2), 0.5).double(),
    ),
    "fractional_max_pool3d": Case(
        lambda: (t(1, 2, 6, 6, 6), 2),
        differentiable=False,
        output_size=3,
        _random_samples=torch.full((1, 2, 3), 0.5).double(),
    ),
    "pad": Case(lambda: (t(1, 2, 4), (1, 1)), mode="reflect"),
    "trace": Case(lambda: (t(3, 3),)),
    "lstm": Case(
        lambda: (t(3, 2, 4), (t(1, 2, 3), t(1, 2, 3, start=0.3)), rnn_weights(4), True, 1, 0.0, False, False, False)
    ),
    "lstm_cell": Case(lambda: (t(2, 4), (t(2, 3), t(2, 3, start=0.3))) + tuple(rnn_weights(4))),
    "cat concat concatenate hstack vstack dstack column_stack row_stack stack": Case(
        lambda: ([t(3, 4), t(3, 4, start=0.3)],)
    ),
    (
        "inverse cholesky cholesky_inverse det logdet slogdet matrix_exp cholesky_ex inv inv_ex eigvalsh cond pinv "
        "pinverse matrix_sqrth"
    ): Case(lambda: (spd(),)),
    "eig eigh lu lu_factor ldl_factor eigvals geqrf": Case(lambda: (spd(),), compares=False),
    "solve solve_ex lstsq": Case(lambda: (spd(), t(3, 2))),
    "cholesky_solve triangular_solve": Case(lambda: (t(3, 2), spd())),
    "solve_triangular": Case(lambda: (spd(), t(3, 2)), upper=True),
    "lu_solve": Case(lambda: (t(3, 2), spd(), torch.tensor([1, 2, 3], dtype=torch.int32))),
    "householder_product orgqr": Case(lambda: (t(4, 3), t(3))),
    "ormqr": Case(lambda: (t(4, 3), t(3), t(4, 2))),
    "tensorinv": Case(lambda: (spd(4).reshape(2, 2, 4),), ind=2),
    "tensorsolve": Case(lambda: (spd(4).reshape(2, 2, 2, 2), t(2, 2))),
    "fft fft2 fftn rfft rfft2 rfftn ihfft ihfft2 ihfftn ifft ifft2 ifftn irfft irfft2 irfftn hfft hfft2 hfftn": Case(
        lambda: (t(4, 4),)
    ),
    "gru": Case(lambda: (t(3, 2, 4), t(1, 2, 3), rnn_weights(3), True, 1, 0.0, False, False, False)),
    "gru_cell": Case(lambda: (t(2, 4), t(2, 3)) + tuple(rnn_weights(3))),
    "rnn_tanh rnn_relu": Case(lambda: (t(3, 2, 4), t(1, 2, 3), rnn_weights(1), True, 1, 0.0, False, False, False)),
    "rnn_tanh_cell rnn_relu_cell": Case(lambda: (t(2, 4), t(2, 3)) + tuple(rnn_weights(1))),
}

CASES = {name: case for names, case in _CASES.items() for name in names.split()}

#: Cases for names whose function has different arguments in one owner.
BY_OWNER = {
    ("torch.linalg", "polar"): Case(lambda: (spd(),)),
    ("torch.linalg", "lu_solve"): Case(lambda: (spd(), torch.tensor([1, 2, 3], dtype=torch.int32), t(3, 2))),
    ("torch.linalg", "cross"): Case(lambda: (t(4, 3), t(4, 3, start=0.3))),
    ("torch.sparse", "mm"): None,  # they need sparse matrices: test_sparse_products
    ("torch.sparse", "addmm"): None,
    ("torch", "poisson_nll_loss"): Case(lambda: (t(3, 4), t(3, 4, start=0.3), True, False, 1e-8, 1)),
}


def case_of(row):
    """Return the case for a row, first by its owner, then by its name; in-place forms by their plain name."""
    plain = row.name[:-1] if row.name.endswith("_") and not row.name.endswith("__") else row.name
    for key in ((row.owner, row.name), (row.owner, plain)):
        if key in BY_OWNER:
            return BY_OWNER[key]
    return CASES.get(plain)


#: The kinds of inputs: all low dtype, all high dtype, both alternating.
KINDS = ("low", "high", "mixed")


class Device:
    """A device on which forms are called.

    Args:
        name: "cpu", "cuda", …
    """

    #: Whether its tensors have values to compare.
    has_values = True

    def __init__(self, name="cpu"):
        self.name = name

    def put(self, tensor, requires_grad=False):
        """Return a CPU tensor as a new leaf on this device."""
        return tensor.detach().to(self.name).requires_grad_(requires_grad)

    def call(self, function, args, kwargs):
        """Call a function on arguments on this device."""
        return function(*args, **kwargs)


CPU = Device()


class Inputs:
    """The arguments of one call.

    Args:
        case: a ``sample_arguments.Case``.
        kind: one of ``KINDS``.
        pair: the ``DtypePair``.
        device: the device of the tensors.
    """

    def __init__(self, case, kind, pair, device=CPU):
        dtypes = {"low": [pair.low], "high": [pair.high], "mixed": [pair.high, pair.low]}[kind]
        self.device = device
        self.sources = []  # the floating inputs on the CPU
        self.leaves = []

        def put(tensor):
            if not tensor.is_floating_point():
                return device.put(tensor)
            self.sources.append(tensor.to(dtypes[len(self.sources) % len(dtypes)]).detach())
            self.leaves.append(device.put(self.sources[-1], case.differentiable))
            return self.leaves[-1]

        self._made = (tuple(case.make()), dict(case.kwargs))
        self.args, self.kwargs = mapped(put, self._made)

    def exact(self):
        """Return the same values as float64 leaves on the CPU."""
        twin = object.__new__(Inputs)
        twin.device, twin.leaves, sources = CPU, [], iter(self.sources)

        def put(tensor):
            if not tensor.is_floating_point():
                return tensor
            source = next(sources)
            twin.leaves.append(source.double().requires_grad_(self.leaves[len(twin.leaves)].requires_grad))
            return twin.leaves[-1]

        twin.args, twin.kwargs = mapped(put, self._made)
        return twin


def mapped(function, value):
    """Apply a function to the tensors of nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: mapped(function, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(function, item) for item in value])
    return value
