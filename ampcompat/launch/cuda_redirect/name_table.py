"""The table of redirected names.

Owners and names are strings. A name that this torch does not have is skipped, unless it is missing only in builds
without CUDA (``ADDED``). Names without a row still raise an error if they initialize CUDA, since
``torch.cuda._lazy_init`` has a row.
"""

from collections import Counter
from typing import Any, NamedTuple, Tuple

from .replacements import class_proxies, device_arguments, mixed_precision, several_gpus, streams, unsupported
from .replacements.device_queries import CAPABILITY

#: How a name is redirected.
ARGUMENTS = "arguments"  # detail: (parameter, rule) pairs; the rules are in ``device_arguments``
CALLED = "called"  # detail: function(target, original, *arguments of the call)
REPLACED = "replaced"  # detail: function(target, original) that returns the replacement
QUERY = "query"  # the method of that name of ``replacements.device_queries.DeviceQueries``
RETURNS = "returns"  # returns a copy of detail (None by default), whatever the arguments
ADDED = "added"  # the same; added if torch was built without CUDA
UNSUPPORTED = "unsupported"  # raises an error; detail: the reason and what to do


class NameRule(NamedTuple):
    """How several names of one owner, or of each of several, are redirected."""

    owner: str  # in the table: one or several
    names: Tuple[str, ...]
    rule: str
    detail: Any = None


def _names(text):
    return tuple(text.split())


_FACTORIES = _names(
    """
    arange as_tensor asarray bartlett_window blackman_window empty empty_like empty_permuted empty_quantized
    empty_strided eye from_file full full_like hamming_window hann_window kaiser_window linspace logspace normal ones
    ones_like rand rand_like randint randint_like randn randn_like randperm range scalar_tensor sparse_bsc_tensor
    sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor tensor
    tril_indices triu_indices zeros zeros_like
    """
)
_WINDOWS = _names(
    "bartlett blackman cosine exponential gaussian general_cosine general_hamming hamming hann kaiser nuttall"
)
_NEW_TENSORS = _names("new new_tensor new_empty new_empty_strided new_full new_ones new_zeros")
_STORAGES = (
    "torch.storage._StorageBase torch.storage.UntypedStorage torch.storage.TypedStorage "
    "torch.storage._UntypedStorage torch.storage._TypedStorage"
)

_TENSORS = (
    NameRule("torch", _FACTORIES, CALLED, device_arguments.factory),
    NameRule("torch.fft", _names("fftfreq rfftfreq"), CALLED, device_arguments.factory),
    NameRule("torch.signal.windows", _WINDOWS, CALLED, device_arguments.factory),
    NameRule("torch.nested", _names("nested_tensor as_nested_tensor"), CALLED, device_arguments.factory),
    NameRule("torch.Tensor", _NEW_TENSORS, CALLED, device_arguments.factory),
    NameRule("torch.Tensor", ("to",), CALLED, device_arguments.tensor_to),
    NameRule("torch.Tensor", ("cuda",), CALLED, device_arguments.tensor_cuda),
    NameRule("torch.Tensor", ("cpu",), CALLED, device_arguments.tensor_cpu),
    NameRule("torch.Tensor", ("pin_memory",), CALLED, device_arguments.return_self),
    NameRule("torch.Tensor", ("is_cuda",), REPLACED, device_arguments.tensor_is_cuda),
    NameRule("torch.Tensor torch", ("get_device",), CALLED, device_arguments.get_device),
    NameRule("torch.Tensor", ("record_stream",), RETURNS),
    NameRule("torch.Tensor", ("type",), CALLED, class_proxies.tensor_type),
    NameRule("torch.nn.Module", ("to",), CALLED, device_arguments.module_to),
    NameRule("torch.cuda", tuple(class_proxies.DTYPES), REPLACED, class_proxies.cuda_type),
    NameRule("torch", ("set_default_tensor_type",), CALLED, class_proxies.set_default_tensor_type),
    NameRule("torch", ("device",), REPLACED, class_proxies.device),
    NameRule("torch.accelerator", ("current_accelerator",), CALLED, class_proxies.current_accelerator),
    NameRule("torch", ("Generator",), REPLACED, class_proxies.generator),
    NameRule("torch.utils._device.DeviceContext", ("__init__",), ARGUMENTS, (("device", "device"),)),
    NameRule(_STORAGES, ("cuda",), CALLED, device_arguments.storage_cuda),
    NameRule(_STORAGES, ("pin_memory",), CALLED, device_arguments.return_self),
)

_FILES = (
    NameRule("torch.serialization", ("default_restore_location",), ARGUMENTS, (("location", "location"),)),
    NameRule("torch.jit", ("load",), ARGUMENTS, (("map_location", "device"),)),
    NameRule("torch.utils.data.DataLoader", ("__init__",), ARGUMENTS, (("pin_memory", "false"),)),
)

_QUERIES = _names("device_count current_device set_device get_device_name get_device_properties synchronize cudart")
_MEMORY = _names(
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached "
    "mem_get_info"
)
_MEMORY_RESULTS = (
    (("memory_stats", "host_memory_stats"), RETURNS, Counter()),  # every counter is 0
    (("memory_stats_as_nested_dict", "host_memory_stats_as_nested_dict"), RETURNS, {}),
    (("memory_summary", "list_gpu_processes"), RETURNS, "No GPU memory is in use: ampcompat redirects CUDA."),
    (("memory_snapshot",), RETURNS, []),
    (("get_per_process_memory_fraction",), RETURNS, 1.0),
    (("get_allocator_backend",), RETURNS, "native"),
)
_MEMORY_RESETS = _names(
    """
    empty_cache reset_max_memory_allocated reset_max_memory_cached reset_peak_memory_stats
    reset_accumulated_memory_stats reset_peak_host_memory_stats reset_accumulated_host_memory_stats
    set_per_process_memory_fraction
    """
)
_RANDOM = _names(
    "manual_seed manual_seed_all seed seed_all initial_seed get_rng_state get_rng_state_all set_rng_state "
    "set_rng_state_all"
)
_DRIVER = _names("utilization temperature power_draw clock_rate memory_usage device_memory_used")
_COLLECTIVES = _names("all_reduce reduce broadcast all_gather reduce_scatter init_rank unique_id version")
_STREAMS = _names("Stream Event StreamContext stream current_stream default_stream set_stream device device_of")
_GRAPH_NAMES = _names("CUDAGraph graph graph_pool_handle make_graphed_callables export_dot export_graph_data")
_GRAPHS = "CUDA graphs replay GPU kernels; run the script without graphs"
_NVML = "it queries NVIDIA's driver (NVML) about a GPU, and this run uses no GPU"
_ALLOCATOR = "it changes or calls the GPU memory allocator, and this run uses no GPU"
_NCCL = "it calls NCCL directly; use torch.distributed or torch.nn.parallel.comm, which are redirected"
_RAW = "it returns or compiles something that can only be used by CUDA kernels"

_RESULTS = tuple(NameRule("torch.cuda torch.cuda.memory", *row) for row in _MEMORY_RESULTS) + (
    NameRule("torch.cuda", _names("is_available is_initialized is_bf16_supported"), RETURNS, True),
    NameRule(
        "torch.cuda", _names("is_tf32_supported is_current_stream_capturing can_device_access_peer"), RETURNS, False
    ),
    NameRule("torch.cuda.graphs", ("is_current_stream_capturing",), RETURNS, False),
    NameRule("torch.backends.cudnn", ("is_acceptable",), RETURNS, False),
    NameRule("torch.backends.cudnn", ("version",), RETURNS),  # torch's own compares it with the GPU's capability
    NameRule("torch.cuda", ("get_device_capability",), RETURNS, CAPABILITY),
    NameRule("torch.cuda", ("get_arch_list",), RETURNS, []),
    NameRule("torch.cuda", ("get_gencode_flags",), RETURNS, ""),
    NameRule("torch.cuda", ("get_sync_debug_mode",), RETURNS, 0),
)

_CUDA = (
    NameRule("torch.cuda", _QUERIES, QUERY),
    NameRule("torch.cuda", ("init", "ipc_collect", "set_sync_debug_mode", "_sleep"), RETURNS),
    NameRule("torch._C", ("_cuda_clearCublasWorkspaces",), ADDED),  # PyTorch Lightning calls it
    NameRule("torch.cuda torch.cuda.memory", _MEMORY, QUERY),
    NameRule("torch.cuda", _MEMORY_RESETS, RETURNS),
    NameRule("torch.cuda.memory", _MEMORY_RESETS + ("_record_memory_history",), RETURNS),
    NameRule("torch.cuda torch.cuda.random", _RANDOM, QUERY),
    NameRule("torch.cuda", _STREAMS, REPLACED, streams.replacement),
    NameRule("torch.cuda.streams", ("Stream", "Event"), REPLACED, streams.replacement),
    NameRule("torch.cuda.nvtx", ("range_push", "range_pop", "range_start"), RETURNS, 0),
    NameRule("torch.cuda.nvtx", ("mark", "range_end"), RETURNS),
    NameRule("torch.cuda.profiler", ("start", "stop", "init"), RETURNS),
    NameRule("torch.cuda torch.cuda.graphs", _GRAPH_NAMES, UNSUPPORTED, _GRAPHS),
    NameRule("torch.cuda", _DRIVER, UNSUPPORTED, _NVML),
    NameRule(
        "torch.cuda",
        _names(
            """
            caching_allocator_alloc caching_allocator_delete caching_allocator_enable caching_allocator_disabled
            change_current_allocator CUDAPluggableAllocator MemPool MemPoolContext use_mem_pool
            """
        ),
        UNSUPPORTED,
        _ALLOCATOR,
    ),
    NameRule(
        "torch.cuda",
        _names(
            "ExternalStream GreenContext current_blas_handle current_solver_handle get_stream_from_external "
            "_compile_kernel"
        ),
        UNSUPPORTED,
        _RAW,
    ),
    NameRule("torch.cuda.jiterator", _names("_create_jit_fn _create_multi_output_jit_fn"), UNSUPPORTED, _RAW),
    NameRule("torch.cuda.nccl", _COLLECTIVES, UNSUPPORTED, _NCCL),
    NameRule("torch.cuda", ("_lazy_init",), CALLED, unsupported.lazy_init),
)

_UNSCALE_KERNELS = _names("_amp_foreach_non_finite_check_and_unscale_ _amp_non_finite_check_and_unscale_")
_MIXED_PRECISION = (
    NameRule("torch.autocast", ("__init__",), REPLACED, mixed_precision.autocast_init),
    NameRule("torch", ("get_autocast_dtype", "set_autocast_dtype"), REPLACED, mixed_precision.translate_device_type),
    NameRule(
        "torch",
        _names("is_autocast_enabled set_autocast_enabled get_autocast_gpu_dtype set_autocast_gpu_dtype"),
        REPLACED,
        mixed_precision.autocast_flag,
    ),
    NameRule("torch.amp", ("custom_fwd", "custom_bwd"), ARGUMENTS, (("device_type", "type"),)),
    NameRule("torch.cuda.amp", ("custom_fwd", "custom_bwd"), REPLACED, mixed_precision.custom_function),
    NameRule("torch.amp.GradScaler", ("__init__",), ARGUMENTS, (("device", "type"),)),
    NameRule("torch", _UNSCALE_KERNELS, REPLACED, mixed_precision.check_and_unscale),
    NameRule("torch", ("_amp_update_scale_",), REPLACED, mixed_precision.update_scale),
    NameRule("torch", ("_amp_update_scale",), CALLED, mixed_precision.compute_new_scale),
)

_ONE_DEVICE = (("device_ids", "none"), ("output_device", "none"))
_DATA_PARALLEL = "torch.nn.parallel torch.nn.parallel.data_parallel"
_PARALLEL_APPLY = "torch.nn.parallel torch.nn.parallel.parallel_apply torch.nn.parallel.data_parallel"
_DISTRIBUTED = "torch.distributed torch.distributed.distributed_c10d"
_DEVICE_MESH = "torch.distributed torch.distributed.device_mesh"
_PROCESS_GROUP = (("backend", "backend"), ("device_id", "none"))
_PARALLEL = (
    NameRule("torch.nn.DataParallel", ("__init__",), CALLED, several_gpus.data_parallel_init),
    NameRule(_DATA_PARALLEL, ("data_parallel",), CALLED, several_gpus.data_parallel),
    NameRule(_PARALLEL_APPLY, ("parallel_apply",), CALLED, several_gpus.parallel_apply),
    NameRule("torch.nn.parallel.comm torch.cuda.comm", tuple(several_gpus.COMM), CALLED, several_gpus.comm),
    NameRule("torch.nn.parallel._functions.Scatter", ("apply",), CALLED, several_gpus.scatter_apply),
    NameRule("torch.nn.parallel._functions.Gather", ("apply",), CALLED, several_gpus.gather_apply),
    NameRule("torch.nn.parallel._functions.Broadcast", ("apply",), CALLED, several_gpus.broadcast_apply),
    NameRule("torch.nn.parallel.DistributedDataParallel", ("__init__",), ARGUMENTS, _ONE_DEVICE),
    NameRule("torch.nn.parallel.DistributedDataParallel", ("_passing_sync_batchnorm_handle",), RETURNS),
    NameRule("torch.nn.SyncBatchNorm", ("forward",), CALLED, several_gpus.sync_batch_norm_forward),
    NameRule(_DISTRIBUTED, ("is_nccl_available",), RETURNS, True),
    NameRule(_DISTRIBUTED, ("init_process_group", "new_group"), ARGUMENTS, _PROCESS_GROUP),
    NameRule(_DISTRIBUTED, ("barrier",), ARGUMENTS, (("device_ids", "none"),)),
    NameRule(_DEVICE_MESH, ("init_device_mesh",), ARGUMENTS, (("device_type", "type"),)),
)

_PROFILED = (("use_cuda", "false"), ("use_device", "not cuda"))
_PROFILING = (
    NameRule("torch.autograd.profiler.profile", ("__init__",), ARGUMENTS, _PROFILED),
    NameRule("torch.autograd.profiler", ("emit_nvtx",), REPLACED, streams.emit_nvtx),
    NameRule("torch.profiler.profile", ("__init__",), ARGUMENTS, (("activities", "activities"),)),
)

_EXTENSIONS = (
    NameRule("torch.utils.cpp_extension", ("CUDAExtension",), UNSUPPORTED, "it compiles code that needs a GPU to run"),
    NameRule("torch.utils.cpp_extension", ("load", "load_inline"), CALLED, unsupported.without_cuda_sources),
    NameRule("torch.distributed.fsdp.FullyShardedDataParallel", ("__init__",), ARGUMENTS, (("device_id", "none"),)),
)

#: Modules of torch that are slow to import: their rows are applied when they are imported.
LAZY_MODULES = ("torch.utils.cpp_extension", "torch.distributed.fsdp")


def rows():
    """Return every row, each with one owner, in the order in which they are applied."""
    table = _CUDA + _RESULTS + _TENSORS + _FILES + _MIXED_PRECISION + _PARALLEL + _PROFILING + _EXTENSIONS
    return [row._replace(owner=owner) for row in table for owner in _names(row.owner)]


def lazy_module(row):
    """Return the lazily imported module of a row, or None."""
    for module in LAZY_MODULES:
        if (row.owner + ".").startswith(module + "."):
            return module
    return None
