"""Specification 5 and 6: every name of Apex that it lists, and libraries that test which names exist."""

import importlib
import inspect
import pickle
import sys
import types

import pytest
import torch

from ampcompat.apex import install

#: module -> names, as scripts import them.
NAMES = {
    "apex": "amp contrib fp16_utils fused_dense mlp multi_tensor_apply normalization optimizers parallel pyprof "
    "reparameterization RNN",
    "apex.amp": "initialize scale_loss state_dict load_state_dict master_params half_function float_function "
    "promote_function register_half_function register_float_function register_promote_function init lists",
    "apex.amp._amp_state": "_amp_state maybe_print warn_or_err master_params",
    "apex.amp._initialize": "initialize applier",
    "apex.amp.amp": "init half_function register_half_function register_float_function register_promote_function",
    "apex.amp.compat": "filter_attrs",
    "apex.amp.frontend": "initialize Properties O0 O1 O2 O3 O4 O5 state_dict load_state_dict opt_levels",
    "apex.amp.handle": "disable_casts scale_loss",
    "apex.amp.lists.functional_overrides": "MODULE FP16_FUNCS FP32_FUNCS BANNED_FUNCS",
    "apex.amp.lists.tensor_overrides": "MODULE FP16_FUNCS FP32_FUNCS CASTS",
    "apex.amp.lists.torch_overrides": "MODULE FP16_FUNCS FP32_FUNCS CASTS SEQUENCE_CASTS",
    "apex.amp.opt": "OptimWrapper",
    "apex.amp.rnn_compat": "RNN_NAMES has_old_rnns",
    "apex.amp.scaler": "LossScaler",
    "apex.amp.utils": "is_nested is_fp_tensor",
    "apex.contrib": "clip_grad layer_norm optimizers xentropy",
    "apex.contrib.clip_grad": "clip_grad_norm_",
    "apex.contrib.layer_norm": "FastLayerNorm",
    "apex.contrib.layer_norm.layer_norm": "FastLayerNorm",
    "apex.contrib.optimizers": "FP16_Optimizer FusedAdam FusedLAMB FusedSGD",
    "apex.contrib.optimizers.fp16_optimizer": "FP16_Optimizer",
    "apex.contrib.optimizers.fused_adam": "FusedAdam",
    "apex.contrib.optimizers.fused_lamb": "FusedLAMB",
    "apex.contrib.optimizers.fused_sgd": "FusedSGD",
    "apex.contrib.xentropy": "SoftmaxCrossEntropyLoss",
    "apex.contrib.xentropy.softmax_xentropy": "SoftmaxCrossEntropyLoss",
    "apex.fp16_utils": "BN_convert_float network_to_half prep_param_lists model_grads_to_master_grads "
    "master_params_to_model_params tofp16 to_python_float clip_grad_norm convert_module convert_network FP16Model "
    "FP16_Optimizer LossScaler DynamicLossScaler",
    "apex.fp16_utils.fp16_optimizer": "FP16_Optimizer",
    "apex.fp16_utils.fp16util": "network_to_half prep_param_lists tofp16 FP16Model convert_network",
    "apex.fp16_utils.loss_scaler": "LossScaler DynamicLossScaler",
    "apex.fused_dense": "FusedDense FusedDenseGeluDense",
    "apex.fused_dense.fused_dense": "FusedDense FusedDenseGeluDense fused_dense_function",
    "apex.mlp": "MLP MlpFunction",
    "apex.mlp.mlp": "MLP MlpFunction",
    "apex.multi_tensor_apply": "multi_tensor_applier MultiTensorApply",
    "apex.normalization": "FusedLayerNorm FusedRMSNorm MixedFusedLayerNorm MixedFusedRMSNorm",
    "apex.normalization.fused_layer_norm": "FusedLayerNorm FusedRMSNorm MixedFusedLayerNorm MixedFusedRMSNorm "
    "fused_layer_norm fused_layer_norm_affine fused_rms_norm fused_rms_norm_affine mixed_dtype_fused_layer_norm_affine "
    "mixed_dtype_fused_rms_norm_affine FusedLayerNormAffineFunction FusedLayerNormFunction FusedRMSNormAffineFunction",
    "apex.optimizers": "FP16_Optimizer FusedAdagrad FusedAdam FusedLAMB FusedMixedPrecisionLamb FusedNovoGrad FusedSGD",
    "apex.optimizers.fp16_optimizer": "FP16_Optimizer",
    "apex.optimizers.fused_adagrad": "FusedAdagrad",
    "apex.optimizers.fused_adam": "FusedAdam",
    "apex.optimizers.fused_lamb": "FusedLAMB",
    "apex.optimizers.fused_mixed_precision_lamb": "FusedMixedPrecisionLamb",
    "apex.optimizers.fused_novograd": "FusedNovoGrad",
    "apex.optimizers.fused_sgd": "FusedSGD",
    "apex.parallel": "DistributedDataParallel Reducer SyncBatchNorm LARC convert_syncbn_model "
    "create_syncbn_process_group multiproc",
    "apex.parallel.distributed": "DistributedDataParallel Reducer flat_dist_call",
    "apex.parallel.LARC": "LARC",
    "apex.parallel.multiproc": "main",
    "apex.parallel.optimized_sync_batchnorm": "SyncBatchNorm",
    "apex.parallel.sync_batchnorm": "SyncBatchNorm",
    "apex.pyprof": "nvtx init",
    "apex.pyprof.nvtx": "init wrap",
    "apex.reparameterization": "apply_weight_norm remove_weight_norm",
    "apex.RNN": "LSTM GRU ReLU Tanh mLSTM models",
    "apex.RNN.cells": "mLSTMRNNCell",
    "apex.RNN.models": "LSTM GRU ReLU Tanh mLSTM bidirectionalRNN stackedRNN RNNCell mLSTMRNNCell",
    "apex.RNN.RNNBackend": "RNNCell bidirectionalRNN stackedRNN",
    "amp_C": "multi_tensor_scale multi_tensor_axpby multi_tensor_l2norm multi_tensor_adam multi_tensor_sgd "
    "multi_tensor_lamb multi_tensor_lamb_stage1_cuda multi_tensor_lamb_stage2_cuda multi_tensor_novograd "
    "multi_tensor_adagrad multi_tensor_unscale_l2norm multi_tensor_adam_capturable_master update_scale_hysteresis",
    "apex_C": "flatten unflatten",
}
ABSENT = [
    ("apex.parallel", "Nonsense", "DistributedDataParallel, LARC"),
    ("apex.optimizers", "FusedLion", "FusedAdagrad, FusedAdam"),
    ("apex.normalization", "FusedGroupNorm", "FusedLayerNorm, FusedRMSNorm"),
    ("apex.contrib", "foo", "torch itself"),
    ("apex.contrib.optimizers", "DistributedFusedAdam", "ZeroRedundancyOptimizer"),
    ("apex.contrib.sparsity", "ASP", "torch.ao.pruning"),
    ("apex.contrib.transducer", "TransducerLoss", "rnnt_loss"),
    ("apex.pyprof", "prof", "torch.profiler"),
    ("apex.transformer", "parallel_state", "megatron.core"),
]


@pytest.fixture(autouse=True, scope="module")
def alias():
    install.install()
    importlib.import_module("apex")
    yield
    install.uninstall()


@pytest.mark.parametrize("module", NAMES)
def test_every_name_is_there(module):
    for name in NAMES[module].split():
        scope = {}
        exec(f"from {module} import {name} as found", scope)
        found = scope["found"]
        assert found == getattr(importlib.import_module(module), name), name
        assert callable(found) or isinstance(found, (types.ModuleType, dict, list)) or name == "MODULE", name


@pytest.mark.parametrize("module", NAMES)
def test_classes_are_ampcompats_and_unpickle_under_their_names_in_apex(module):
    own = sys.modules.get("ampcompat." + module)
    for name in NAMES[module].split():
        found = getattr(importlib.import_module(module), name)
        if isinstance(found, type) and found is not torch.Tensor:
            assert found is getattr(own, name, found) and found.__module__.startswith(("ampcompat.", "apex.amp.opt"))
            assert pickle.loads(f"c{module}\n{name}\n.".encode()) is found


@pytest.mark.parametrize("module, name, instead", ABSENT, ids=["{} {}".format(*row) for row in ABSENT])
def test_a_missing_name_is_an_error_when_imported_and_only_then(module, name, instead):
    with pytest.raises(ImportError, match=instead) as caught:
        exec(f"from {module} import {name}", {})
    assert f"{module}.{name}" in str(caught.value) or module in str(caught.value)
    if importlib.util.find_spec(module) is not None:
        assert not hasattr(importlib.import_module(module), name)
        assert getattr(importlib.import_module(module), name, None) is None


def test_what_there_is_instead_is_what_there_is():
    with pytest.raises(ImportError) as caught:
        exec("from apex import foo", {})
    listed = str(caught.value).partition("apex has ")[2].rstrip(".").split(", ")
    assert set(listed) == {"DeprecatedFeatureWarning"}.union(NAMES["apex"].split())


def test_a_name_that_a_module_file_lacks_is_an_import_error_that_names_it():
    with pytest.raises(ImportError, match="Nonsense"):
        exec("from apex.parallel.LARC import Nonsense", {})


def test_the_profiler_is_switched_on_in_vain():
    from apex import pyprof

    assert pyprof.nvtx.init() is None and pyprof.init(enable_function_stack=True) is None
    assert pyprof.nvtx.wrap(torch, "add") is None


# -- libraries that choose their code by what they find ----------------------------------------------------------------


def test_fairseq_subclasses_the_norm_and_the_adam_that_it_finds():
    from apex.multi_tensor_apply import multi_tensor_applier
    from apex.normalization import FusedLayerNorm
    from apex.optimizers import FusedAdam

    class Norm(FusedLayerNorm):
        def forward(self, x):
            return super().forward(x)

    class Adam(FusedAdam):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            if not hasattr(self, "multi_tensor_adam"):
                raise Exception("Apex installation is outdated. Please install an updated version of apex.")

        def step(self, closure=None):
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
                params = [param for param in group["params"] if param.grad is not None]
                for param in params:
                    self.state[param].setdefault("exp_avg", torch.zeros_like(param))
                    self.state[param].setdefault("exp_avg_sq", torch.zeros_like(param))
                rows = [[param.grad for param in params], params]
                rows += [[self.state[param][name] for param in params] for name in ("exp_avg", "exp_avg_sq")]
                numbers = [group["lr"], *group["betas"], group["eps"], group["step"], self.adam_w_mode]
                correction = 1 if group["bias_correction"] else 0
                numbers += [correction, group["weight_decay"]]
                multi_tensor_applier(self.multi_tensor_adam, self._dummy_overflow_buf, rows, *numbers)

    assert multi_tensor_applier.available
    assert Norm(4)(torch.randn(2, 4)).shape == (2, 4)
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizers = [make([param], lr=0.1) for make, param in zip((Adam, FusedAdam), params)]
    for _ in range(3):
        for param, optimizer in zip(params, optimizers):
            param.grad = param.detach() * 0.5
            optimizer.step()
    assert torch.allclose(*params)


@pytest.mark.parametrize(
    "name, function",
    [
        ("FusedAdagrad", "multi_tensor_adagrad"),
        ("FusedAdam", "multi_tensor_adam"),
        ("FusedLAMB", "multi_tensor_lamb"),
        ("FusedLAMB", "multi_tensor_l2norm"),
        ("FusedNovoGrad", "multi_tensor_novograd"),
        ("FusedSGD", "multi_tensor_sgd"),
    ],
)
def test_optimizers_show_the_function_that_they_are_made_of(name, function):
    import amp_C
    import apex.optimizers

    optimizer = getattr(apex.optimizers, name)([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert getattr(optimizer, function) is getattr(amp_C, function)


def test_find_spec_of_the_compiled_parts_returns_none():
    for name in ("fused_layer_norm_cuda", "fused_adam_cuda", "xentropy_cuda", "mlp_cuda"):
        assert importlib.util.find_spec(name) is None


def test_signatures_are_as_scripts_pass_them():
    from apex import optimizers

    assert list(inspect.signature(optimizers.FusedAdam.step).parameters)[:3] == ["self", "closure", "grads"]
