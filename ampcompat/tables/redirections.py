"""What of CUDA is redirected, name by name: the table behind ``run --device``.

Owns: the rows, and which of torch's modules wait until somebody imports them.
Must not touch: torch; owners and names are strings, and what they lead to is the business of ``devices``.
The surprise: a name that a torch lacks is skipped, unless it is missing only for want of CUDA (``ADDED``). A name that
is missing here is still not silent: whatever reaches CUDA's own initialisation is refused with a sentence
(``torch.cuda._lazy_init`` is a row too).
"""

from typing import Any, NamedTuple, Tuple

#: How a name is redirected.
FACTORY = "factory"  # the keyword ``device`` is translated, ``pin_memory`` dropped
ARGUMENTS = "arguments"  # detail: (parameter, rule) pairs; the rules are in ``devices.arguments``
STAND_IN = "stand-in"  # detail: "room.maker" in ``devices``; maker(target, original) returns what takes its place
ANSWER = "answer"  # the method of that name of ``devices.answers.Answers``
NOTHING = "nothing"  # does nothing, returns None: true of a device without that machinery
ADDED = "added"  # does nothing either, and is put there where torch was built without CUDA
REFUSED = "refused"  # detail: why, and what to do


class Row(NamedTuple):
    """Names of one owner that are redirected in the same way."""

    owner: str
    names: Tuple[str, ...]
    how: str
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
_TENSOR_TYPES = _names(
    "FloatTensor DoubleTensor HalfTensor BFloat16Tensor ByteTensor CharTensor ShortTensor IntTensor LongTensor "
    "BoolTensor"
)
_STORAGES = ("torch.storage._StorageBase", "torch.storage.UntypedStorage", "torch.storage.TypedStorage")
_OLDER_STORAGES = ("torch.storage._UntypedStorage", "torch.storage._TypedStorage")

_TENSORS = (
    Row("torch", _FACTORIES, FACTORY),
    Row("torch.fft", _names("fftfreq rfftfreq"), FACTORY),
    Row("torch.signal.windows", _WINDOWS, FACTORY),
    Row("torch.nested", _names("nested_tensor as_nested_tensor"), FACTORY),
    Row(
        "torch.Tensor", _names("new new_tensor new_empty new_empty_strided new_full new_ones new_zeros"), FACTORY
    ),
    Row("torch.Tensor", ("to",), STAND_IN, "movement.tensor_to"),
    Row("torch.Tensor", ("cuda",), STAND_IN, "movement.tensor_cuda"),
    Row("torch.Tensor", ("cpu",), STAND_IN, "movement.tensor_cpu"),
    Row("torch.Tensor", ("pin_memory",), STAND_IN, "movement.unchanged"),
    Row("torch.Tensor", ("is_cuda",), STAND_IN, "movement.tensor_is_cuda"),
    Row("torch.Tensor", ("get_device",), STAND_IN, "movement.get_device"),
    Row("torch", ("get_device",), STAND_IN, "movement.get_device"),
    Row("torch.Tensor", ("record_stream",), NOTHING),
    Row("torch.Tensor", ("type",), STAND_IN, "tensor_types.tensor_type"),
    Row("torch.nn.Module", ("to",), STAND_IN, "movement.module_to"),
    Row("torch.cuda", _TENSOR_TYPES, STAND_IN, "tensor_types.cuda_type"),
    Row("torch", ("set_default_tensor_type",), STAND_IN, "tensor_types.set_default_tensor_type"),
    Row("torch", ("device",), STAND_IN, "facades.device"),
    Row("torch", ("Generator",), STAND_IN, "facades.generator"),
    Row("torch.utils._device.DeviceContext", ("__init__",), ARGUMENTS, (("device", "device"),)),
) + tuple(
    Row(owner, (name,), STAND_IN, maker)
    for owner in _STORAGES + _OLDER_STORAGES
    for name, maker in (("cuda", "movement.storage_cuda"), ("pin_memory", "movement.unchanged"))
)

_FILES = (
    Row("torch.serialization", ("default_restore_location",), ARGUMENTS, (("location", "location"),)),
    Row("torch.jit", ("load",), ARGUMENTS, (("map_location", "device"),)),
    Row("torch.utils.data.DataLoader", ("__init__",), ARGUMENTS, (("pin_memory", "false"),)),
)

_QUERIES = _names(
    """
    is_available device_count current_device set_device get_device_name get_device_capability get_device_properties
    is_initialized is_bf16_supported is_tf32_supported is_current_stream_capturing can_device_access_peer get_arch_list
    get_gencode_flags get_sync_debug_mode synchronize cudart
    """
)
_MEMORY = _names(
    """
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached
    mem_get_info memory_stats memory_stats_as_nested_dict host_memory_stats host_memory_stats_as_nested_dict
    memory_summary memory_snapshot list_gpu_processes get_per_process_memory_fraction get_allocator_backend
    """
)
_MEMORY_ORDERS = _names(
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
_GRAPHS = "CUDA graphs replay kernels of a GPU; run the script with its graphs switched off"
_NVML = "it asks NVIDIA's driver (NVML) about a GPU, and no GPU takes part in this run"
_ALLOCATOR = "it changes or calls the allocator of a GPU's memory, and no GPU takes part in this run"
_NCCL = "it calls NCCL directly; torch.distributed and torch.nn.parallel.comm are redirected, use those"
_RAW = "it gives away or builds something that only CUDA kernels can use"

_CUDA = (
    Row("torch.cuda", _QUERIES, ANSWER),
    Row("torch.cuda.graphs", ("is_current_stream_capturing",), ANSWER),
    Row("torch.backends.cudnn", ("is_acceptable",), ANSWER),
    Row("torch.cuda", ("init", "ipc_collect", "set_sync_debug_mode", "_sleep"), NOTHING),
    Row("torch._C", ("_cuda_clearCublasWorkspaces",), ADDED),  # what PyTorch Lightning calls before and after training
    Row("torch.cuda", _MEMORY, ANSWER),
    Row("torch.cuda.memory", _MEMORY, ANSWER),
    Row("torch.cuda", _MEMORY_ORDERS, NOTHING),
    Row("torch.cuda.memory", _MEMORY_ORDERS + ("_record_memory_history",), NOTHING),
    Row("torch.cuda", _RANDOM, ANSWER),
    Row("torch.cuda.random", _RANDOM, ANSWER),
    Row("torch.cuda", _STREAMS, STAND_IN, "streams.stand_in"),
    Row("torch.cuda.streams", ("Stream", "Event"), STAND_IN, "streams.stand_in"),
    Row("torch.cuda.nvtx", ("range_push", "range_pop", "range_start"), STAND_IN, "streams.nvtx"),
    Row("torch.cuda.nvtx", ("mark", "range_end"), NOTHING),
    Row("torch.cuda.profiler", ("start", "stop", "init"), NOTHING),
    Row("torch.cuda", _names("CUDAGraph graph graph_pool_handle make_graphed_callables"), REFUSED, _GRAPHS),
    Row(
        "torch.cuda.graphs", _names("CUDAGraph graph graph_pool_handle make_graphed_callables"), REFUSED, _GRAPHS
    ),
    Row("torch.cuda", _DRIVER, REFUSED, _NVML),
    Row(
        "torch.cuda",
        _names(
            """
            caching_allocator_alloc caching_allocator_delete caching_allocator_enable caching_allocator_disabled
            change_current_allocator CUDAPluggableAllocator MemPool MemPoolContext use_mem_pool
            """
        ),
        REFUSED,
        _ALLOCATOR,
    ),
    Row(
        "torch.cuda",
        _names(
            "ExternalStream GreenContext current_blas_handle current_solver_handle get_stream_from_external "
            "_compile_kernel"
        ),
        REFUSED,
        _RAW,
    ),
    Row("torch.cuda.jiterator", _names("_create_jit_fn _create_multi_output_jit_fn"), REFUSED, _RAW),
    Row("torch.cuda.nccl", _COLLECTIVES, REFUSED, _NCCL),
    Row("torch.cuda", ("_lazy_init",), STAND_IN, "refusals.lazy_init"),
)

_MIXED_PRECISION = (
    Row("torch.autocast", ("__init__",), STAND_IN, "precision.autocast_init"),
    Row("torch", ("get_autocast_dtype", "set_autocast_dtype"), STAND_IN, "precision.first_type"),
    Row(
        "torch",
        _names("is_autocast_enabled set_autocast_enabled get_autocast_gpu_dtype set_autocast_gpu_dtype"),
        STAND_IN,
        "precision.autocast_flag",
    ),
    Row("torch.amp", ("custom_fwd", "custom_bwd"), ARGUMENTS, (("device_type", "type"),)),
    Row("torch.cuda.amp", ("custom_fwd", "custom_bwd"), STAND_IN, "precision.custom_function"),
    Row("torch.amp.GradScaler", ("__init__",), ARGUMENTS, (("device", "type"),)),
    Row("torch", ("_amp_foreach_non_finite_check_and_unscale_",), STAND_IN, "precision.check_and_unscale"),
    Row("torch", ("_amp_update_scale_",), STAND_IN, "precision.update_scale"),
    Row("torch", ("_amp_non_finite_check_and_unscale_",), STAND_IN, "precision.check_and_unscale_one"),
    Row("torch", ("_amp_update_scale",), STAND_IN, "precision.new_scale"),
)

_ONE_DEVICE = (("device_ids", "none"), ("output_device", "none"))
_COMM = _names("broadcast broadcast_coalesced reduce_add reduce_add_coalesced scatter gather")
_PARALLEL = (
    Row("torch.nn.DataParallel", ("__init__",), STAND_IN, "one_device.data_parallel_init"),
    Row("torch.nn.parallel", ("data_parallel",), STAND_IN, "one_device.data_parallel"),
    Row("torch.nn.parallel.data_parallel", ("data_parallel",), STAND_IN, "one_device.data_parallel"),
    Row("torch.nn.parallel", ("parallel_apply",), STAND_IN, "one_device.parallel_apply"),
    Row("torch.nn.parallel.parallel_apply", ("parallel_apply",), STAND_IN, "one_device.parallel_apply"),
    Row("torch.nn.parallel.comm", _COMM, STAND_IN, "one_device.comm"),
    Row("torch.cuda.comm", _COMM, STAND_IN, "one_device.comm"),
    Row("torch.nn.parallel._functions.Scatter", ("apply",), STAND_IN, "one_device.scatter_apply"),
    Row("torch.nn.parallel._functions.Gather", ("apply",), STAND_IN, "one_device.gather_apply"),
    Row("torch.nn.parallel._functions.Broadcast", ("apply",), STAND_IN, "one_device.broadcast_apply"),
    Row("torch.nn.parallel.DistributedDataParallel", ("__init__",), ARGUMENTS, _ONE_DEVICE),
    Row("torch.nn.parallel.DistributedDataParallel", ("_passing_sync_batchnorm_handle",), NOTHING),
    Row("torch.nn.SyncBatchNorm", ("forward",), STAND_IN, "one_device.sync_batch_norm_forward"),
) + tuple(
    Row(owner, names, ARGUMENTS, rules)
    for owner in ("torch.distributed", "torch.distributed.distributed_c10d")
    for names, rules in (
        (("init_process_group",), (("backend", "backend"), ("device_id", "none"))),
        (("new_group",), (("backend", "backend"), ("device_id", "none"))),
        (("barrier",), (("device_ids", "none"),)),
    )
)
_MORE_PARALLEL = (
    Row("torch.distributed", ("is_nccl_available",), ANSWER),
    Row("torch.distributed.distributed_c10d", ("is_nccl_available",), ANSWER),
    Row("torch.distributed", ("init_device_mesh",), ARGUMENTS, (("device_type", "type"),)),
    Row("torch.distributed.device_mesh", ("init_device_mesh",), ARGUMENTS, (("device_type", "type"),)),
)

_PROFILED = (("use_cuda", "false"), ("use_device", "not cuda"))
_PROFILING = (
    Row("torch.autograd.profiler.profile", ("__init__",), ARGUMENTS, _PROFILED),
    Row("torch.autograd.profiler", ("emit_nvtx",), STAND_IN, "streams.emit_nvtx"),
    Row("torch.profiler.profile", ("__init__",), ARGUMENTS, (("activities", "activities"),)),
)

_EXTENSIONS = (
    Row("torch.utils.cpp_extension", ("CUDAExtension",), REFUSED, "it compiles code that needs a GPU to run"),
    Row("torch.utils.cpp_extension", ("load", "load_inline"), STAND_IN, "refusals.without_cuda_sources"),
    Row("torch.distributed.fsdp.FullyShardedDataParallel", ("__init__",), ARGUMENTS, (("device_id", "none"),)),
)

#: Modules of torch that cost something to import: their rows wait until somebody does.
LATE_MODULES = ("torch.utils.cpp_extension", "torch.distributed.fsdp")


def rows():
    """Return every row, in the order in which they are put in force."""
    groups = (_CUDA, _TENSORS, _FILES, _MIXED_PRECISION, _PARALLEL, _MORE_PARALLEL, _PROFILING, _EXTENSIONS)
    return [row for group in groups for row in group]


def late_module(row):
    """Return the module that a row waits for, or None."""
    for module in LATE_MODULES:
        if (row.owner + ".").startswith(module + "."):
            return module
    return None
