"""The rows of the op table as data: which function runs in which dtype at O1 and O4, and why.

A row that comes from Apex's lists has the reason "apex". Those lists stopped growing in 2019; every later name has a
reason of its own. ``expansion`` expands the rows to methods and in-place forms. This module does not import torch.
"""

HALF, FLOAT, PROMOTE, SEQUENCE, BANNED = "half", "float", "promote", "sequence", "banned"

#: Internal rules: the in-place forms; functions that run without autocast inside ("passthrough"); functions without
#: half kernels on a CPU, which are computed there in float32 and return the input's dtype ("float32_inside").
FLOAT_IN_PLACE, FOLLOW_SELF = "float_in_place", "follow_self"
PASSTHROUGH, FLOAT32_INSIDE = "passthrough", "float32_inside"

TORCH, FUNCTIONAL, TENSOR = "torch", "torch.nn.functional", "torch.Tensor"
LINALG, SPECIAL, FFT, VF = "torch.linalg", "torch.special", "torch.fft", "torch._VF"
SPARSE = "torch.sparse"

_CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc"
_OPERATORS = (
    "__add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __div__ __idiv__ __truediv__ "
    "__itruediv__ __mod__ __imod__ __floordiv__ __ifloordiv__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__"
)
NO_HALF_KERNEL = "no torch has half kernels for it, so under Apex it could only raise; CPU autocast agrees"
_NO_OLD_KERNEL = "no torch of Apex's time has half kernels for it; CPU autocast agrees"
_AUTOCAST = "torch's CUDA autocast lists it"
_ALIAS = "another name of a row"

BANNED_MESSAGE = (
    "binary_cross_entropy does not work in half precision: its gradient leaves the range of half, and loss scaling "
    "does not prevent that. Compute the loss from the logits instead: drop the sigmoid and use "
    "torch.nn.functional.binary_cross_entropy_with_logits (torch.nn.BCEWithLogitsLoss). If the sigmoid must stay, call "
    "amp.register_float_function(torch, 'sigmoid') before amp.initialize; the loss then gets float32 inputs. "
    "At O2 and O5 it gets them anyway, where the model returns the probabilities. "
    "allow_banned=True casts the inputs and runs the function as it is."
)

# (owner, rule, names, reason)
WRITTEN = (
    (FUNCTIONAL, HALF, _CONVOLUTIONS + " linear", "apex"),
    (TORCH, HALF, _CONVOLUTIONS + " prelu addmm addmv addr matmul mm mv addbmm baddbmm bmm", "apex"),
    (TENSOR, HALF, "__matmul__", "apex"),
    (VF, HALF, "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell", "apex: its RNN patches"),
    (TENSOR, HALF, "__rmatmul__", "the reflected form of a row"),
    (TORCH, HALF, "convolution", _AUTOCAST + "; what the convolutions call"),
    (TORCH, HALF, "chain_matmul einsum matrix_power", _AUTOCAST + "; products of matrices"),
    (FUNCTIONAL, HALF, "scaled_dot_product_attention", _AUTOCAST + "; two products of matrices"),
    (LINALG, HALF, "multi_dot vecdot matmul matrix_power", _AUTOCAST + "; products of matrices"),
    (FUNCTIONAL, HALF, "linear_cross_entropy", "a product of matrices; the loss inside is added up in float32"),
    (TORCH, HALF, "spmm", "another name of mm, for sparse matrices"),
    (SPARSE, HALF, "mm addmm", "products of matrices, like torch.mm and torch.addmm; autocast breaks their backward"),
    (
        FUNCTIONAL,
        FLOAT,
        "interpolate grid_sample softplus softmin log_softmax softmax gelu layer_norm group_norm local_response_norm "
        "normalize cosine_similarity poisson_nll_loss cosine_embedding_loss cross_entropy hinge_embedding_loss kl_div "
        "l1_loss mse_loss margin_ranking_loss multilabel_margin_loss multilabel_soft_margin_loss multi_margin_loss "
        "nll_loss binary_cross_entropy_with_logits smooth_l1_loss soft_margin_loss triplet_margin_loss ctc_loss",
        "apex",
    ),
    (
        TORCH,
        FLOAT,
        "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan pow cumprod cumsum dist norm prod "
        "std sum var renorm",
        "apex",
    ),
    (TENSOR, FLOAT, "__pow__ __rpow__ __ipow__ cpu", "apex"),
    (TENSOR, FLOAT, "__rdiv__ __rtruediv__", "a reciprocal times self, and reciprocal is a float row"),
    (FUNCTIONAL, FLOAT, "huber_loss", _AUTOCAST + "; a loss like smooth_l1_loss"),
    (FUNCTIONAL, FLOAT, "gaussian_nll_loss triplet_margin_with_distance_loss", "a loss, like the losses of Apex"),
    (FUNCTIONAL, FLOAT, "rms_norm", "a norm over features, like layer_norm"),
    (FUNCTIONAL, FLOAT, "pdist", _AUTOCAST),
    (FUNCTIONAL, FLOAT, "pairwise_distance", "a norm of a difference; CUDA autocast casts the norm inside"),
    (FUNCTIONAL, FLOAT, "grid_sampler upsample upsample_nearest upsample_bilinear", _ALIAS),
    (TORCH, FLOAT, "log1p logsumexp", _AUTOCAST),
    (TORCH, FLOAT, "frobenius_norm nuclear_norm arccos arcsin native_layer_norm", _AUTOCAST + ", or an alias of a row"),
    (TORCH, FLOAT, "grid_sampler_2d grid_sampler_3d", "what grid_sample calls"),
    (TORCH, FLOAT, "cov corrcoef", "sums of products, like var; autocast casts the product inside only"),
    (TORCH, FLOAT, "std_mean var_mean logcumsumexp", "the same sums as std, var and logsumexp"),
    (TORCH, FLOAT, "cdist quantile nanquantile stft", NO_HALF_KERNEL),
    (TORCH, FLOAT, "polar view_as_complex matrix_exp", _NO_OLD_KERNEL),
    (LINALG, FLOAT, "matrix_exp", _NO_OLD_KERNEL),
    (
        TORCH,
        FLOAT,
        "lu inverse pinverse cholesky "
        "cholesky_inverse cholesky_solve det logdet slogdet svd qr lu_solve ormqr "
        "orgqr geqrf triangular_solve",
        NO_HALF_KERNEL,
    ),
    (LINALG, FLOAT, "norm vector_norm matrix_norm", _AUTOCAST + "; norms"),
    (
        LINALG,
        FLOAT,
        "cholesky cholesky_ex cond det eig eigh eigvals eigvalsh householder_product inv inv_ex ldl_factor lstsq lu "
        "lu_factor lu_solve matrix_rank pinv qr slogdet solve solve_ex solve_triangular svd svdvals "
        "tensorinv tensorsolve polar matrix_sqrth",
        NO_HALF_KERNEL,
    ),
    (SPECIAL, FLOAT, "expm1 log1p logsumexp log_softmax softmax erfinv", _ALIAS),
    (
        FFT,
        FLOAT,
        "fft ifft fft2 ifft2 fftn ifftn rfft irfft rfft2 irfft2 rfftn irfftn hfft ihfft hfft2 ihfft2 hfftn ihfftn",
        NO_HALF_KERNEL,  # CUDA has them for powers of two only
    ),
    (TORCH, PROMOTE, "addcdiv addcmul atan2 cross bilinear dot add div mul eq equal ge gt le lt ne", "apex"),
    (TENSOR, PROMOTE, _OPERATORS, "apex: operators with their reflected and in-place forms"),
    (TENSOR, PROMOTE, "__rmod__ __rfloordiv__", "the reflected form of an operator"),
    (
        TORCH,
        PROMOTE,
        "sub rsub subtract multiply divide true_divide greater greater_equal less less_equal not_equal arctan2",
        _ALIAS + ", or a sibling of add",
    ),
    (TORCH, PROMOTE, "vdot tensordot index_put scatter_add", _AUTOCAST),
    (TORCH, PROMOTE, "inner index_copy", "a sibling of tensordot and of index_put"),
    (TORCH, PROMOTE, "lerp", "a sibling of addcmul, which refuses other dtypes than that of its start"),
    (LINALG, PROMOTE, "cross", _ALIAS),
    (FUNCTIONAL, PROMOTE, "bilinear", "apex"),
    (TORCH, SEQUENCE, "cat stack", "apex"),
    (TORCH, SEQUENCE, "concat concatenate hstack vstack dstack column_stack row_stack", _ALIAS + ", or built on cat"),
    (FUNCTIONAL, BANNED, "binary_cross_entropy", "apex"),
    (
        FUNCTIONAL,
        PASSTHROUGH,
        "fractional_max_pool2d fractional_max_pool3d",
        "CPU autocast casts it to float32; Apex and CUDA autocast leave it alone",
    ),
    (
        FUNCTIONAL,
        FLOAT32_INSIDE,
        "adaptive_avg_pool3d max_unpool1d max_unpool2d max_unpool3d adaptive_max_pool3d pad",
        "CPU autocast casts it or a part of it to float32; old torch has no half kernels on the CPU",
    ),
    (
        FUNCTIONAL,
        FLOAT32_INSIDE,
        "avg_pool3d max_pool3d",
        "as the other pools; old torch has no half kernels on the CPU",
    ),
    (TORCH, FLOAT32_INSIDE, "trace", "CPU autocast casts it to float32; old torch has no half kernel on the CPU"),
)

#: Promoted functions whose arguments torch promotes by itself, in these operators and in their in-place forms too: its
#: rule is the row's, except that a tensor of shape () counts only if there are no others.
PROMOTED_BY_TORCH = frozenset(
    "add sub rsub subtract mul multiply div divide true_divide eq ne not_equal gt greater ge greater_equal lt less le "
    "less_equal".split()
) | (frozenset(_OPERATORS.split()) | {"__rmod__"})
#: In-place functions whose arguments newer torch promotes by itself; it rounds the result to the dtype of ``self``.
#: Autocast promotes their out-of-place forms, by its own rule, which counts tensors of shape ().
PROMOTED_IN_PLACE_BY_TORCH = frozenset(["addcdiv_", "addcmul_"])
#: Functions whose in-place form has no row, so that it raises for tensors of different dtypes, as with autocast and
#: Apex: the step of Adam calls it for each param.
WITHOUT_IN_PLACE_ROW = frozenset(["lerp"])

#: Products that take sparse matrices, beside those of ``torch.sparse``.
TAKES_SPARSE = frozenset("matmul mm bmm addmm mv addmv spmm __matmul__ __rmatmul__".split())

#: A product of matrices, except that a negative power is one of the inverse, which no torch computes in half.
MATRIX_POWER = "matrix_power"

#: Functions that are computed in float32 where half is emulated on a CPU, beside the half rows: products with another
#: rule, functions of which torch (2.13) adds up the result in half, and those that it has no half kernels for. Their
#: in-place forms too.
EMULATED = (
    "bilinear tensordot inner dot vdot "
    "embedding_bag index_put put index_add index_reduce scatter_add scatter_reduce segment_reduce fold coalesce "
    "to_dense _sparse_sum "
    "local_response_norm multi_margin_loss multilabel_margin_loss ctc_loss"
)
#: Losses that are computed so where torch has no half kernels for them on a CPU: binary_cross_entropy before 2.4,
#: mse_loss before 2.9, smooth_l1_loss before 2.12. Elsewhere they are left alone, since their elements may leave the
#: range of half, as on a GPU.
LOSSES_WITHOUT_OLD_KERNELS = "mse_loss smooth_l1_loss binary_cross_entropy"
#: Functions of which it adds up the gradient in half, at least in one of the half dtypes.
GRADIENT_EMULATED = (
    "embedding __getitem__ take index_select gather take_along_dim layer_norm native_layer_norm grid_sample "
    "grid_sampler unfold max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices "
    "max_pool3d_with_indices avg_pool1d avg_pool2d lp_pool1d lp_pool2d lp_pool3d adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d "
    "adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices"
)

#: Functions that call other rows inside (a matrix product, a reciprocal), where a cast would undo their own rule.
NO_NESTED_CASTS = frozenset(
    "tensordot inner bilinear cdist pdist dist cross multi_dot chain_matmul einsum matrix_power cov corrcoef "
    "linear_cross_entropy polar view_as_complex matrix_exp __rfloordiv__".split()
)
NO_NESTED_CASTS_OWNERS = frozenset([LINALG, FFT])
