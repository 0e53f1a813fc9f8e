"""The rows of the op table that torch's autocast applies by itself, by release and device: data.

Written by ``.ci/record_autocast.py``, which says when a row is among them.
"""

# ("RELEASE DEVICE, ...", owner, names)
ROWS_OF_AUTOCAST = (
    (
        "2.13 cpu, 2.13 cuda, 2.14 cpu, 2.14 cuda, 2.15 cpu, 2.15 cuda",
        "torch",
        "addbmm addmm baddbmm binary_cross_entropy_with_logits bmm conv1d conv2d conv3d conv_tbc "
        "conv_transpose1d conv_transpose2d conv_transpose3d cosine_embedding_loss hinge_embedding_loss kl_div "
        "margin_ranking_loss matmul mm poisson_nll_loss prelu prod triplet_margin_loss",
    ),
    (
        "2.13 cpu, 2.13 cuda, 2.14 cpu, 2.14 cuda, 2.15 cpu, 2.15 cuda",
        "torch.Tensor",
        "__matmul__ __rmatmul__ addbmm addmm baddbmm bmm matmul mm prelu prod",
    ),
    (
        "2.13 cpu, 2.13 cuda, 2.14 cpu, 2.14 cuda, 2.15 cpu, 2.15 cuda",
        "torch._VF",
        "rnn_relu_cell rnn_tanh_cell",
    ),
    (
        "2.13 cpu, 2.13 cuda, 2.14 cpu, 2.14 cuda, 2.15 cpu, 2.15 cuda",
        "torch.nn.functional",
        "binary_cross_entropy_with_logits conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d "
        "conv_transpose3d cosine_embedding_loss hinge_embedding_loss huber_loss kl_div l1_loss linear "
        "margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss poisson_nll_loss "
        "prelu scaled_dot_product_attention smooth_l1_loss soft_margin_loss triplet_margin_loss",
    ),
    (
        "2.13 cpu, 2.14 cpu, 2.15 cpu",
        "torch",
        "ctc_loss grid_sampler grid_sampler_2d grid_sampler_3d spmm",
    ),
    (
        "2.13 cpu, 2.14 cpu, 2.15 cpu",
        "torch._VF",
        "rnn_relu rnn_tanh",
    ),
    (
        "2.13 cpu, 2.14 cpu, 2.15 cpu",
        "torch.nn.functional",
        "cross_entropy ctc_loss grid_sample",
    ),
    (
        "2.13 cuda, 2.14 cuda, 2.15 cuda",
        "torch",
        "acos addmv addr asin convolution cosh cosine_similarity cumprod cumsum erfinv exp expm1 "
        "frobenius_norm group_norm layer_norm log log10 log1p log2 log_softmax logsumexp mv native_layer_norm "
        "norm nuclear_norm pow reciprocal renorm rms_norm rsqrt sinh softmax sum tan",
    ),
    (
        "2.13 cuda, 2.14 cuda, 2.15 cuda",
        "torch.Tensor",
        "__pow__ __rpow__ acos addmv addr asin cosh cumprod cumsum erfinv exp expm1 log log10 log1p log2 "
        "log_softmax logsumexp mv norm pow reciprocal renorm rsqrt sinh softmax sum tan",
    ),
    (
        "2.13 cuda, 2.14 cuda, 2.15 cuda",
        "torch._VF",
        "lstm_cell",
    ),
    (
        "2.13 cuda, 2.14 cuda, 2.15 cuda",
        "torch.nn.functional",
        "cosine_similarity group_norm interpolate layer_norm log_softmax rms_norm softmax softplus",
    ),
    (
        "2.13 cuda, 2.14 cuda, 2.15 cuda",
        "torch.special",
        "erfinv expm1 log1p log_softmax logsumexp softmax",
    ),
    (
        "2.15 cuda",
        "torch._VF",
        "gru_cell",
    ),
)
