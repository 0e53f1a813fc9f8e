"""Every private name of torch that the package uses: its purpose, which torch has it, and what happens without it."""

import sys
import types
import warnings
from typing import NamedTuple, Optional

import torch

from . import features, torch_names

#: Outcomes that many rows share.
LOOP = "a loop over the tensors does the same, more slowly"
NO_MODES = "half products on a CPU are not computed in float32 at O2, O3 and O5"
NO_TRANSFORM = "no effect: a torch without it has no function transforms"
BROKEN = "ampcompat does not work"
SKIPPED = "`run --device` skips the row"
NO_PREDICTION = "estimate ends with an error that gives the required torch"


class PrivateName(NamedTuple):
    """One private name of torch.

    ``since`` and ``until`` are the oldest and the newest torch that is known to have it; None: any that is tested.
    ``cuda``: only a torch that is built for CUDA has it. The owner is dotted, or one of ``_SAMPLES`` for what only
    instances have.
    """

    owner: str
    name: str
    purpose: str
    without: str
    since: Optional[str] = None
    until: Optional[str] = None
    cuda: bool = False


def _rows(owner, names, purpose, without, since=None, until=None, cuda=False):
    return tuple(PrivateName(owner, name, purpose, without, since, until, cuda) for name in names.split())


#: All of them.
NAMES = (
    _rows("torch.Tensor", "_version", "copies of a weight are made anew when the weight was written to", BROKEN)
    + _rows("torch.Tensor", "_base _is_view", "what shares the memory of a weight or gradient", BROKEN)
    + _rows("torch.Tensor", "_values _indices", "sparse gradients: their values and their bytes", BROKEN)
    + _rows("torch", "_sparse_sum", "torch.sparse.sum accumulates in float32 if half is emulated", "it adds up in half")
    + _rows("torch.UntypedStorage", "_cdata", "each memory is counted once", "no memory report", "2.13.0")
    + _rows(
        "torch.ops.aten", "_to_copy", "the memory report knows copies of weights", "no list of allocations", "1.12.1"
    )
    + _rows("torch.ops.aten", "_local_scalar_dense", "the self-test counts host reads", "it counts none", "1.12.1")
    # -- lists of tensors
    + _rows("torch", "_foreach_add _foreach_add_ _foreach_mul _foreach_mul_", "sums, products of lists", LOOP, "1.12.1")
    + _rows("torch", "_foreach_div _foreach_div_ _foreach_sqrt", "fused optimizers", LOOP, "1.12.1")
    + _rows("torch", "_foreach_addcmul_", "fused optimizers", LOOP, "1.12.1")
    + _rows("torch", "_foreach_zero_ _foreach_neg", "gradients set to 0; copies of lists", LOOP, "1.12.1")
    + _rows("torch", "_foreach_norm", "norms of lists", LOOP, "1.12.1")
    + _rows("torch", "_foreach_max", "tells that _foreach_norm takes infinity", LOOP, "2.13.0")
    + _rows("torch", "_foreach_copy_", "gradients to masters, masters to weights", LOOP, "2.13.0")
    + _rows("torch", "_fused_sgd_ _fused_adam_ _fused_adamw_", "steps that a flag on the device skips", LOOP, "2.13.0")
    + _rows("torch", "_amp_foreach_non_finite_check_and_unscale_", "unscale and look for inf", LOOP, "1.12.1")
    + _rows("torch", "_amp_update_scale_", "the loss scale changes on the device", "it is read by the host", "1.12.1")
    + _rows("torch", "_amp_update_scale _amp_non_finite_check_and_unscale_", "redirected", SKIPPED, "1.6.0", "1.6.0")
    # -- autograd
    + _rows("torch.autograd.function.BackwardCFunction", "apply", "backward of custom functions", BROKEN)
    + _rows("torch.autograd.function.BackwardCFunction", "apply_boxed", "the same", "apply is called", "2.13.0")
    + _rows("torch.autograd.Function._backward_cls", "_forward_cls", "tells a user's function from torch's", BROKEN)
    + _rows("torch._functorch.autograd_function", "__name__", "functions that torch.func makes", NO_TRANSFORM, "2.13.0")
    + _rows(
        "torch.utils.checkpoint",
        "_CheckpointFrame",
        "checkpoints recompute as they computed",
        "those without reentrant autograd end in CheckpointError at O1 and O4",
        "2.13.0",
    )
    + _rows("torch.utils.checkpoint", "_checkpoint_without_reentrant", "the same", "the same", "1.12.1", "1.12.1")
    + _rows(
        "torch.autograd.Variable",
        "_execution_engine",
        "backward runs without casts; buckets are flushed after it",
        BROKEN,
    )
    + _rows(
        "torch._C._autograd",
        "_top_saved_tensors_default_hooks _saved_tensors_hooks_is_enabled",
        "hooks of ours on what autograd saves call those of the user",
        "half products save float32 copies of their inputs; no report of saved memory",
        "2.13.0",
    )
    + _rows("torch._C._functorch", "peek_interpreter_stack", "no cached copies in transforms", NO_TRANSFORM, "2.13.0")
    + _rows("torch._C", "_current_graph_task_id", "tells passes within passes", "no level for plain scripts", "2.13.0")
    + _rows("torch._C", "_len_torch_dispatch_stack", "no copies of other modes", "there are no fake tensors", "2.0")
    + _rows("torch._C", "_get_tracing_state", "no cached copies in torch.jit.trace", "a traced copy may be a constant")
    + _rows("a GradScaler", "_per_optimizer_states", "trainers read found_inf there", "they fail", "2.13.0")
    # -- modes and the compiler
    + _rows("torch.overrides", "_get_current_function_mode_stack", "checkpoints in HalfMode", NO_MODES, "2.13.0")
    + _rows("torch._C", "_push_on_torch_function_stack", "tells that function modes can be entered", NO_MODES, "2.13.0")
    + _rows("torch._C", "_pop_torch_function_stack", "run --op-stats", "run --op-stats fails", "2.13.0")
    + _rows("torch", "_GLOBAL_DEVICE_CONTEXT", "the same", "after set_default_device it fails", "2.13.0")
    + _rows("torch.utils._python_dispatch", "TorchDispatchMode", "lists allocations", "no such list", "1.12.1")
    + _rows(
        "torch.utils._python_dispatch",
        "_get_current_dispatch_mode",
        "tells whether a selective checkpoint is active",
        "torch 2.15 warns of saved-tensor hooks around selective checkpoints",
        "2.13.0",
    )
    + _rows(
        "torch.utils.checkpoint", "_CachingTorchDispatchMode _CachedTorchDispatchMode", "the same", "the same", "2.13.0"
    )
    + _rows("torch.autocast('cpu')", "_enabled", "whether autocast takes a dtype", "the patched backend", "1.12.1")
    + _rows(
        "torch._dynamo.trace_rules",
        "get_torch_obj_rule_map clear_lru_cache",
        "torch.compile knows torch's functions, not our wrappers",
        "what is compiled in a session may break after it",
        "2.13.0",
    )
    + _rows(
        "torch.compiler", "_compile_session_context", "is_compiling is true of all it does", "_guards serves", "2.13.0"
    )
    + _rows(
        "torch._utils",
        "is_compiling",
        "tells that the compiler traces",
        "what computes in float32 on a CPU instead of half cannot be compiled",
        "2.2.2",
        "2.2.2",
    )
    + _rows("torch", "_guards", "the same", "products are not compiled with torch 2.8", "2.13.0")
    + _rows("torch._dynamo.utils", "counters", "an audit compiles nothing again", "it may do so", "2.13.0")
    + _rows(
        "torch._dynamo.eval_frame",
        "skip_code",
        "wrappers of the patched backend are not compiled by themselves",
        "torch.compile raises an error where casts are paused within compiled code",
        "2.13.0",
    )
    + _rows(
        "torch._dynamo.decorators.justknobs_check",
        "_dynamo_marked_constant",
        "torch.compile evaluates redirected autocast flags",
        "a graph breaks there under `run --device`",
        "2.13.0",
    )
    # -- modules
    + _rows("torch.utils._pytree", "register_pytree_node", "tree_map maps optimizer.state", "it is a leaf", "2.2.2")
    + _rows("torch.nn.Module()", "_parameters _buffers _modules _forward_pre_hooks", "a module's own entries", BROKEN)
    + _rows("torch.nn.Module", "_register_state_dict_hook", "float32 checkpoints at O2", BROKEN)
    + _rows("torch.nn.Module", "_register_load_state_dict_pre_hook", "masters follow a loaded checkpoint", BROKEN)
    + _rows("torch.nn.Module()", "_state_dict_hooks", "which modules have that hook already", BROKEN)
    + _rows("torch.nn.modules.batchnorm", "_BatchNorm", "layers that stay float32", BROKEN)
    + _rows("torch.nn.modules.instancenorm", "_InstanceNorm", "its running statistics stay float32", BROKEN)
    + _rows("torch", "_VF", "recurrent kernels are rows of the op table", "found as torch.nn.modules.rnn._VF", "1.12.1")
    + _rows("torch.nn.modules.rnn", "_VF", "the same for the oldest torch", "found as torch._VF")
    + _rows("torch.nn.modules.rnn", "_rnn_impls", "recurrent layers find wrapped kernels", "they look them up by name")
    # -- data loading
    + _rows("torch.utils.data._utils.worker", "_worker_loop", "workers load data without casts", BROKEN)
    + _rows("torch.utils.data._utils.pin_memory", "_pin_memory_loop", "pins memory without casts", "casts may stay on")
    + _rows(
        "torch.utils.data.dataloader",
        "_BaseDataLoaderIter _SingleProcessDataLoaderIter _MultiProcessingDataLoaderIter",
        "a Dataset in the main process loads data without casts",
        "what it computes is cast at O1 and O4",
    )
    # -- optimizers
    + _rows(
        "an optimizer under a scheduler",
        "_step_count",
        "schedulers know of skipped steps",
        "_wrapped_by_lr_sched serves",
        until="1.12.1",
    )
    + _rows("an optimizer under a scheduler.step()", "_opt_called", "the same", "they warn of their order", "2.13.0")
    + _rows("an optimizer under a scheduler.step", "_wrapped_by_lr_sched", "the same", "_step_count serves", "2.13.0")
    + _rows(
        "an optimizer under a scheduler",
        "_optimizer_step_pre_hooks _optimizer_step_post_hooks",
        "hooks run once for a step in chunks, and see the new weights",
        "old torch has no hooks",
        "2.0.1",
    )
    + _rows("a fused optimizer", "_step_supports_amp_scaling", "steps that a flag skips", "the host skips", "2.13.0")
    + _rows(
        "torch.cuda.amp.GradScaler",
        "_check_inf_per_device _get_scale_async",
        "Apex's fused optimizers under torch's GradScaler",
        "an error at the step",
        "1.12.1",
    )
    # -- devices
    + _rows("torch.cuda", "_lazy_init", "names what cannot be redirected", BROKEN)
    + _rows("torch.cuda", "_sleep", "does nothing under `run --device`", SKIPPED)
    + _rows("torch.cuda", "_compile_kernel", "refused under `run --device`", SKIPPED, "2.13.0")
    + _rows("torch.cuda.jiterator", "_create_jit_fn", "refused under `run --device`", SKIPPED, "1.12.1")
    + _rows("torch.cuda.jiterator", "_create_multi_output_jit_fn", "the same", SKIPPED, "2.13.0")
    + _rows("torch.cuda.memory", "_record_memory_history", "does nothing under `run --device`", SKIPPED, "2.13.0")
    + _rows("torch._C", "_cuda_clearCublasWorkspaces", "does nothing", "it is added", "2.13.0", cuda=True)
    + _rows("torch.nn.parallel.DistributedDataParallel", "_passing_sync_batchnorm_handle", "does nothing", SKIPPED)
    + _rows(
        "a DistributedDataParallel",
        "_comm_hooks _register_builtin_comm_hook _set_static_graph",
        "they are kept at a forced level",
        BROKEN,
        "2.1.2",
    )
    + _rows("a DistributedDataParallel", "_get_ddp_logging_data", "an audit asks for its hook", "it fails", "2.1.2")
    + _rows("torch.nn.parallel._functions", "Scatter Gather Broadcast", "one device in place of many", SKIPPED)
    + _rows("torch.storage", "_StorageBase", "storages move to the device", SKIPPED)
    + _rows("torch.storage", "_UntypedStorage _TypedStorage", "the same", SKIPPED, "1.12.1", "1.12.1")
    + _rows("torch.utils._device", "DeviceContext _device_constructors", "`with torch.device`", SKIPPED, "2.13.0")
    # -- sharding
    + _rows(
        "a ZeroRedundancyOptimizer",
        "_all_params _clear_cache _overlap_with_ddp",
        "master weights at O2 and O5",
        "initialize fails with this optimizer at these levels",
        "2.13.0",
    )
    + _rows(
        "torch.distributed.fsdp.FSDPModule",
        "_get_fsdp_state",
        "which modules went through fully_shard",
        "O2, O3 and O5 do not see that a model is sharded, and cast its shards",
        "2.13.0",
    )
    + _rows(
        "a state of fully_shard",
        "_mp_policy _fsdp_param_groups _fsdp_param_group _is_root",
        "O2, O3 and O5 set the dtype in which torch gathers weights",
        "these levels fail on sharded models",
        "2.13.0",
    )
    + _rows(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup",
        "_init_mp_dtypes",
        "that dtype changes after the first pass too",
        "initialize and reset fail after the first pass of a sharded model",
        "2.13.0",
    )
    # -- fake tensors
    + _rows("torch._subclasses.fake_tensor", "FakeTensorMode FakeTensor", "estimate's step", NO_PREDICTION, "2.5.0")
    + _rows(
        "torch._subclasses.fake_tensor",
        "DataDependentOutputException DynamicOutputShapeException UnsupportedFakeTensorException "
        "UnsupportedOperatorException",
        "estimate reports the operation that fake tensors do not support",
        NO_PREDICTION,
        "2.5.0",
    )
    + _rows("torch.ops.aten.equal.default", "_schema", "versions of lists of fake tensors", NO_PREDICTION, "2.5.0")
    + _rows(
        "torch.utils._python_dispatch", "_disable_current_modes", "trials of torch are real", NO_PREDICTION, "2.5.0"
    )
    + _rows("torch.nn.Module", "_apply", "modules with fake params can be converted", NO_PREDICTION, "2.5.0")
)


def _stepped():
    optimizer = _scheduled()
    optimizer.step()
    return optimizer


def _zero_redundancy():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch compiles functions when this is imported, and warns of that itself
        kind = torch_names.find("torch.distributed.optim.ZeroRedundancyOptimizer")
    return _with_names_of(kind, kind._verify_and_init_params)


def _with_names_of(kind, *functions):
    """Return an object with the names in a class and its constructor: making an instance takes a process group."""
    names = [name for function in (kind.__init__,) + functions for name in function.__code__.co_names]
    return types.SimpleNamespace(**dict.fromkeys(names + list(vars(kind))))


def _sharding_state():
    state = torch_names.find("torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState")()
    state.init((torch.nn.Module(),), torch.device("cpu"), torch.distributed.fsdp.MixedPrecisionPolicy(), True)
    return state


def _scheduled():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    optimizer.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


#: Samples of owners whose attributes only instances have.
_SAMPLES = {
    "torch.nn.Module()": torch.nn.Module,
    "torch.autocast('cpu')": lambda: torch.autocast("cpu"),
    "a GradScaler": lambda: torch.amp.GradScaler("cpu"),
    "a state of fully_shard": _sharding_state,
    "a ZeroRedundancyOptimizer": _zero_redundancy,
    "a DistributedDataParallel": lambda: _with_names_of(torch.nn.parallel.DistributedDataParallel),
    "an optimizer under a scheduler": _scheduled,
    "an optimizer under a scheduler.step": lambda: _scheduled().step,
    "an optimizer under a scheduler.step()": _stepped,
    "a fused optimizer": lambda: torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], fused=True),
}


def _has(row):
    """Return whether the installed torch has a name; True also for the compiler's while it is not imported."""
    if row.owner.startswith("torch._dynamo") and row.owner not in sys.modules:
        return True  # its import takes seconds and changes torch
    try:
        owner = _SAMPLES[row.owner]() if row.owner in _SAMPLES else torch_names.find(row.owner)
        return hasattr(owner, row.name)
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError):
        return False


def absent():
    """Return the rows whose name the installed torch does not have."""
    return [row for row in NAMES if not _has(row)]


def is_expected(row):
    """Return whether the installed torch should have a name, by the versions in its row."""
    if row.cuda and torch.version.cuda is None:
        return False
    return features.is_version_within(row.since, row.until)


def gone():
    """Return the rows whose name the installed torch does not have although its version should."""
    return [row for row in absent() if is_expected(row)]
