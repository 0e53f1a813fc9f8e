"""What scripts written for CUDA do, with the CPU in place of CUDA: one test for each thing that scripts do."""

import copy
import inspect
import io
import pickle
import warnings

import pytest
import torch
from helpers.processes import python
from torch import nn

from ampcompat.cuda_redirect import redirect_device
from ampcompat.errors import AmpError, AmpNotImplementedError, AmpValueError
from ampcompat.support.torch_compat import torch_names


@pytest.fixture(autouse=True)
def on_cpu():
    """Redirect CUDA to the CPU around each test."""
    with redirect_device("cpu") as target:
        yield target


def needs(name):
    """Return a mark: skip where this torch has no such name."""
    return pytest.mark.skipif(torch_names.find(name) is None, reason="this torch has no " + name)


# -- where tensors go --------------------------------------------------------------------------------------------------

FACTORIES = [
    lambda **on: torch.zeros(2, **on),
    lambda **on: torch.ones(2, dtype=torch.float64, **on),
    lambda **on: torch.empty(2, **on),
    lambda **on: torch.full((2,), 3.0, **on),
    lambda **on: torch.tensor([1, 2], **on),
    lambda **on: torch.as_tensor([1.0], **on),
    lambda **on: torch.arange(3, **on),
    lambda **on: torch.linspace(0, 1, 3, **on),
    lambda **on: torch.eye(2, **on),
    lambda **on: torch.rand(2, **on),
    lambda **on: torch.randn(2, **on),
    lambda **on: torch.randint(3, (2,), **on),
    lambda **on: torch.randperm(3, **on),
    lambda **on: torch.zeros_like(torch.ones(2), **on),
    lambda **on: torch.rand_like(torch.ones(2), **on),
    lambda **on: torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), **on),
    lambda **on: torch.ones(2).new_zeros(2, **on),
    lambda **on: torch.ones(2).new_tensor([1.0], **on),
    lambda **on: torch.ones(2).to(**on),
    lambda **on: nn.Linear(2, 2).to(**on).weight,
]
CUDA = ["cuda", "cuda:0", "cuda:3", 0, torch.device("cuda"), torch.device("cuda", 1)]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("make", FACTORIES, ids=lambda make: inspect.getsource(make).strip()[14:-1])
def test_every_way_to_make_a_tensor_on_cuda_makes_it_here(make):
    for device in CUDA:
        made = make(device=device)
        assert made.is_cuda and made.device == torch.device("cpu") and made.get_device() == 0


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.cuda(),
        lambda x: x.cuda(0),
        lambda x: x.cuda("cuda:0"),
        lambda x: x.cuda(torch.device("cuda", 0), non_blocking=True),
        lambda x: x.cuda(device=0, non_blocking=True),
        lambda x: x.to("cuda"),
        lambda x: x.to("cuda:1", non_blocking=True),
        lambda x: x.to(torch.device("cuda")),
        lambda x: x.to(0),
        lambda x: x.to("cuda", torch.float32),
        lambda x: x.to(device="cuda", dtype=torch.float32),
        lambda x: x.pin_memory().cuda(),
    ],
)
def test_a_tensor_moves_without_being_copied(move):
    x = torch.ones(2)
    assert move(x) is x


def test_other_uses_of_to_are_unchanged():
    x = torch.ones(2)
    assert x.to(torch.float64).dtype is torch.float64
    assert x.to(torch.ones(1, dtype=torch.float64)).dtype is torch.float64
    assert x.to("cuda", torch.float64).dtype is torch.float64
    assert x.to("cuda", copy=True) is not x


@pytest.mark.parametrize("take", [lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.to(device="cpu")])
def test_a_copy_on_the_cpu_does_not_change_with_the_weights(take):
    weight = torch.ones(2)
    snapshot = take(weight)
    weight.add_(1)
    assert snapshot.tolist() == [1.0, 1.0]


def test_modules_move_and_are_the_same_objects():
    model = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2), nn.BatchNorm1d(2))
    params = list(model.parameters())
    assert model.cuda() is model and model.cuda(1) is model and model.to(0) is model and model.to("cuda") is model
    assert all(old is new for old, new in zip(params, model.cpu().parameters()))
    assert all(param.is_cuda and param.requires_grad and param.is_leaf for param in params)


def test_a_network_trains_and_its_lstm_runs():
    lstm = nn.LSTM(3, 4).cuda()
    optimizer = torch.optim.Adam(lstm.parameters())
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 3), [3, 2])
    assert packed.cuda().is_cuda and packed.to("cuda:0").is_cuda
    lstm(packed.cuda())[0].data.sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())


def test_torch_device_takes_an_index_and_stays_a_class():
    assert torch.device(0) == torch.device("cuda:0") == torch.device(type="cuda", index=0)
    assert isinstance(torch.device("cuda"), torch.device) and isinstance(torch.ones(1).device, torch.device)
    assert not isinstance("cuda", torch.device) and torch.device("cuda").type == "cuda"
    assert pickle.loads(pickle.dumps(torch.device("cuda:1"))) == torch.device("cuda", 1)


def test_generators_for_cuda():
    for generator in (torch.Generator("cuda"), torch.Generator(device="cuda:0"), torch.Generator(torch.device("cuda"))):
        assert isinstance(generator, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
        first = torch.rand(3, generator=generator.manual_seed(4), device="cuda")
        assert torch.equal(first, torch.rand(3, generator=generator.manual_seed(4), device="cuda"))


def test_tensor_types_of_cuda():
    x = torch.cuda.FloatTensor([1, 2])
    assert x.tolist() == [1.0, 2.0] and torch.cuda.LongTensor(2, 3).shape == (2, 3)
    assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x, torch.cuda.LongTensor)
    assert x.type() == "torch.cuda.FloatTensor" and x.half().type() == "torch.cuda.HalfTensor"
    for expected in ("torch.cuda.DoubleTensor", torch.cuda.DoubleTensor):
        assert x.type(expected).dtype is torch.float64
        assert nn.Linear(2, 2).type(expected).weight.dtype is torch.float64
    assert x.type(torch.int64).dtype is torch.int64 and x.type("torch.IntTensor").dtype is torch.int32


def test_the_default_tensor_type_may_be_one_of_cuda():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it deprecated
        try:
            for expected in ("torch.cuda.DoubleTensor", torch.cuda.DoubleTensor):
                torch.set_default_tensor_type(expected)
                assert torch.ones(1).dtype is torch.float64
                torch.set_default_tensor_type(torch.FloatTensor)
        finally:
            torch.set_default_dtype(torch.float32)


@needs("torch.set_default_device")
def test_the_default_device_may_be_cuda():
    try:
        torch.set_default_device("cuda")
        assert torch.ones(1).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    with torch.device("cuda:0"):
        assert torch.ones(1).device.type == "cpu"


# -- queries of torch.cuda ----------------------------------------------------------------------------------------


def test_queries():
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_name() == torch.cuda.get_device_name("cuda:0") == "CPU in place of CUDA (ampcompat)"
    properties = torch.cuda.get_device_properties(0)
    assert (properties.major, properties.minor) == torch.cuda.get_device_capability() == (7, 0)
    assert properties.total_memory >= 0 and properties.multi_processor_count >= 1
    assert torch.backends.cudnn.enabled and torch.backends.cudnn.version() is None
    torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark


def test_any_index_can_be_the_current_device(on_cpu):
    assert torch.cuda.current_device() == 0
    with torch.cuda.device(2):
        assert torch.cuda.current_device() == 2
        with torch.cuda.device_of(torch.ones(1)):
            assert torch.cuda.current_device() == 0
        with torch.cuda.device(None):
            assert torch.cuda.current_device() == 2
    for device in (1, "cuda:1", torch.device("cuda", 1)):
        torch.cuda.set_device(device)
        assert torch.cuda.current_device() == 1
    assert torch.ones(1, device="cuda").get_device() == 0


def test_under_a_launcher_there_is_a_device_for_each_process(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert torch.cuda.device_count() == 4


QUERIES = [
    ("memory_allocated", (), 0),
    ("max_memory_allocated", (0,), 0),
    ("memory_reserved", (), 0),
    ("memory_cached", (), 0),
    ("reset_peak_memory_stats", (), None),
    ("reset_max_memory_allocated", (0,), None),
    ("empty_cache", (), None),
    ("synchronize", ("cuda:0",), None),
    ("init", (), None),
    ("ipc_collect", (), None),
    ("is_initialized", (), True),
    ("is_bf16_supported", (), True),
    ("is_current_stream_capturing", (), False),
    ("get_arch_list", (), []),
    ("memory_snapshot", (), []),
    ("can_device_access_peer", (0, 1), False),
    ("set_sync_debug_mode", (1,), None),
]


@pytest.mark.parametrize(
    "name, arguments, expected", [pytest.param(*row, marks=needs("torch.cuda." + row[0])) for row in QUERIES]
)
def test_simple_queries(name, arguments, expected):
    assert getattr(torch.cuda, name)(*arguments) == expected


@needs("torch.cuda.memory_stats")
def test_memory_reports():
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0
    assert "No GPU memory" in torch.cuda.memory_summary()


def test_seeds_and_states():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.cuda.manual_seed(3)
    assert torch.equal(torch.rand(2, device="cuda"), expected)
    torch.cuda.manual_seed_all(3)
    state, states = torch.cuda.get_rng_state(), torch.cuda.get_rng_state_all()
    assert torch.equal(torch.rand(2), expected) and torch.cuda.initial_seed() == 3
    torch.cuda.set_rng_state(state, "cuda:0")
    assert torch.equal(torch.rand(2), expected)
    torch.cuda.set_rng_state_all(states)
    with torch.random.fork_rng():
        torch.rand(5)
    assert torch.equal(torch.rand(2), expected)
    with pytest.raises(AmpValueError, match="16 bytes.*Leave it out"):
        torch.cuda.set_rng_state(torch.zeros(16, dtype=torch.uint8))


# -- streams, events, markers ------------------------------------------------------------------------------------------


def test_streams():
    side, outer = torch.cuda.Stream(), torch.cuda.current_stream()
    assert outer is torch.cuda.default_stream() and isinstance(side, torch.cuda.Stream)
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() is side
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() is side
    assert torch.cuda.current_stream() is outer
    side.wait_stream(outer)
    outer.wait_event(side.record_event())
    assert side.query() and side.synchronize() is None and torch.ones(1).record_stream(side) is None
    assert torch.cuda.Stream(device="cuda:1", priority=-1).device == torch.device("cuda", 1)


def test_events_measure_time():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    total = sum(range(10000))
    end.record(torch.cuda.current_stream())
    end.synchronize()
    assert total and end.query() and start.elapsed_time(end) > 0 > end.elapsed_time(start)
    with pytest.raises(AmpValueError, match="enable_timing=True"):
        start.elapsed_time(torch.cuda.Event())
    with pytest.raises(AmpValueError, match="were recorded"):
        start.elapsed_time(torch.cuda.Event(enable_timing=True))


def test_markers_and_profilers():
    assert torch.cuda.nvtx.range_push("a") == torch.cuda.nvtx.range_pop() == 0 and torch.cuda.nvtx.mark("a") is None
    assert torch.cuda.cudart().cudaProfilerStart() == torch.cuda.cudart().cudaProfilerStop() == 0
    with torch.cuda.profiler.profile(), torch.autograd.profiler.emit_nvtx():
        torch.ones(1).cuda().sum()


@needs("torch.profiler")
def test_a_profile_of_cuda_is_one_of_this_device():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        torch.ones(1).cuda().sum()
    assert "aten::sum" in recorded.key_averages().table()


# -- torch's own mixed precision ---------------------------------------------------------------------------------------


@needs("torch.autocast")
def test_autocast_for_cuda_casts_here():
    low = torch.mm(*[torch.ones(2, 2)] * 2).dtype
    for region in (torch.autocast("cuda"), torch.autocast(device_type="cuda", dtype=torch.bfloat16)):
        with region:
            low = torch.mm(torch.ones(2, 2).cuda(), torch.ones(2, 2).cuda()).dtype
            assert torch.is_autocast_enabled() and torch.get_autocast_gpu_dtype() is low
        assert low in (torch.float16, torch.bfloat16) and not torch.is_autocast_enabled()
    assert low is torch.bfloat16
    with torch.autocast("cuda", enabled=False):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32


@needs("torch.cuda.amp.autocast")
@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp:FutureWarning")
def test_grad_scaler_scales_steps_and_skips():
    model = nn.Linear(3, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    start = model.weight.detach().clone()
    scaler = torch.cuda.amp.GradScaler(init_scale=4.0, growth_interval=2)
    seen = []
    for factor in (1.0, 1.0, float("inf")):
        optimizer.zero_grad()
        with torch.cuda.amp.autocast():
            loss = model(torch.ones(1, 3).cuda()).sum()
        scaler.scale(loss.float() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append(scaler.get_scale())
    assert scaler.is_enabled() and seen == [4.0, 8.0, 4.0]
    assert torch.equal(model.weight.detach(), start - 1.0)  # two steps of 0.5 times a gradient of 1, and none for inf


@needs("torch.cuda.amp.custom_fwd")
@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp:FutureWarning")
def test_custom_functions_see_the_region():
    class Doubled(torch.autograd.Function):
        @staticmethod
        @torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            seen.append((x.dtype, torch.is_autocast_enabled()))
            return x * 2

        @staticmethod
        @torch.cuda.amp.custom_bwd
        def backward(ctx, grad):
            return grad * 2

    seen = []
    x = torch.ones(2, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    with torch.cuda.amp.autocast():
        Doubled.apply(x).sum().backward()
    assert seen == [(torch.float32, False)] and x.grad.tolist() == [2.0, 2.0]


# -- files and loaders -------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(monkeypatch):
    """Return a file that a process on cuda:1 has saved."""
    file = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
        torch.save({"weight": torch.ones(2)}, file)
    file.seek(0)
    return file


LOCATIONS = [
    None,
    "cuda",
    "cuda:0",
    "cpu",
    torch.device("cuda", 1),
    {"cuda:1": "cuda:0"},
    {},
    lambda storage, location: storage,
    lambda storage, location: storage.cuda(0),
    lambda storage, location: None,
]


@pytest.mark.parametrize("location", LOCATIONS, ids=lambda location: getattr(location, "__name__", str(location)))
def test_a_checkpoint_of_cuda_loads_with_any_map_location(checkpoint, location):
    loaded = torch.load(checkpoint, map_location=location)["weight"]
    assert loaded.is_cuda and loaded.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("arguments", [((), {"pin_memory": True}), ((2, False, None, None, 0, None, True), {})])
def test_a_loader_that_pins_memory(arguments):
    data = torch.utils.data.TensorDataset(torch.ones(4, 2))
    loader = torch.utils.data.DataLoader(data, *arguments[0], **arguments[1])
    assert sum(batch.cuda(non_blocking=True).sum().item() for (batch,) in loader) == 8.0
    assert torch.empty(2, pin_memory=True).shape == (2,)


@pytest.mark.filterwarnings("ignore:pickle support for Storage:FutureWarning")
def test_copies_and_pickles():
    model = copy.deepcopy(nn.Linear(2, 2).cuda())
    assert torch.equal(pickle.loads(pickle.dumps(model)).weight, model.weight)
    assert pickle.loads(pickle.dumps(torch.cuda.is_available)) is torch.cuda.is_available
    assert pickle.loads(pickle.dumps(torch.zeros)) is torch.zeros


# -- several GPUs in one process ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device_ids", [None, [0], [0, 1], range(2), ["cuda:1", torch.device("cuda", 0)]])
def test_data_parallel_runs_the_module_and_shows_the_devices_that_it_was_given(device_ids):
    model = nn.Linear(2, 2).cuda()
    parallel = nn.DataParallel(model, device_ids, output_device=None).cuda()
    expected = [0] if device_ids is None else [1, 0] if "cuda:1" in device_ids else list(device_ids)
    assert parallel.device_ids == expected and parallel.output_device == expected[0]
    x = torch.randn(4, 2).to(f"cuda:{parallel.device_ids[0]}")
    assert torch.equal(parallel(x), model(x)) and parallel.module is model and x.device == parallel.src_device_obj
    assert torch.equal(nn.parallel.data_parallel(model, x, device_ids), model(x))
    assert list(parallel.state_dict()) == ["module.weight", "module.bias"]
    assert nn.DataParallel(model, [0, 1], output_device="cuda:1").output_device == 1


def test_subclasses_of_data_parallel_split_and_collect_in_their_own_ways():
    class Collecting(nn.DataParallel):
        def gather(self, outputs, output_device):
            return outputs, output_device

        def scatter(self, inputs, kwargs, device_ids):
            return [(inputs[0][:1],), (inputs[0][1:],)], [kwargs] * 2

    outputs, device = Collecting(nn.Linear(2, 3), [0, 1])(torch.randn(4, 2))
    assert [output.shape for output in outputs] == [(1, 3), (3, 3)] and device == 0


def test_models_with_outputs_that_cannot_be_joined_run_on_one_of_the_devices():
    class Model(nn.Module):
        def forward(self, batch, scale=1.0):
            return {"loss": batch["x"].mean() * scale, "name": batch["name"]}

    output = nn.DataParallel(Model(), [0])({"x": torch.ones(4), "name": "one"}, scale=2.0)
    assert output["loss"] == 2.0 and output["name"] == "one"


def test_the_parts_of_data_parallel():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).cuda()
    chunks = nn.parallel.scatter(torch.randn(6, 2), [0, 1])
    replicas = nn.parallel.replicate(model, [0, 1])
    joined = nn.parallel.gather(nn.parallel.parallel_apply(replicas, chunks), 0)
    joined.pow(2).sum().backward()
    assert [len(chunk) for chunk in chunks] == [3, 3] and joined.shape == (6, 2)
    assert all(param.grad is not None for param in model.parameters())
    assert (model[1].running_mean != 0).any()  # the first replica's statistics are the module's


def test_communication_between_gpus_of_one_process():
    comm = torch.cuda.comm
    assert [len(chunk) for chunk in comm.scatter(torch.ones(5, 2), [0, 1])] == [3, 2]
    assert [len(chunk) for chunk in comm.scatter(torch.ones(5), [0, 1], [1, 4])] == [1, 4]
    copies = comm.broadcast(torch.ones(2), [0, 1])
    copies[1].add_(1)
    assert comm.gather(copies).tolist() == [1.0, 1.0, 2.0, 2.0]
    assert comm.reduce_add([torch.ones(2)] * 3).tolist() == [3.0, 3.0]
    assert [len(each) for each in comm.broadcast_coalesced([torch.ones(1)] * 2, [0, 1, 2])] == [2, 2, 2]


# -- compilers ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_compiles_torchs_own_functions():
    def function(x):
        return torch.zeros(2) + torch.ones_like(x)

    try:
        scripted = torch.jit.script(function)
    except OSError:
        pytest.skip("this torch cannot read the source of a test")
    assert scripted(torch.ones(2)).tolist() == [1.0, 1.0]


COMPILED = """
import torch
from ampcompat.apex import normalization
from ampcompat.cuda_redirect import redirect_device

def function(x):
    return x * 2 if torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") is torch.float16 else x * 3

with redirect_device("cpu"):
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    outside = compiled(torch.ones(1, device="cuda"))
    with torch.autocast("cuda"):
        inside = compiled(torch.ones(1, device="cuda"))
    for kind in "FusedLayerNorm FusedRMSNorm MixedFusedLayerNorm MixedFusedRMSNorm".split():
        norm, x = getattr(normalization, kind)(2).cuda(), torch.tensor([[1.0, 3.0]], requires_grad=True, device="cuda")
        (gradient,) = torch.autograd.grad(norm(x)[0, 0], x)
        (found,) = torch.autograd.grad(torch.compile(norm, backend="eager", fullgraph=True)(x)[0, 0], x)
        assert torch.equal(found, gradient)
print(outside.item(), inside.item())
"""


@needs("torch.get_autocast_dtype")
@needs("torch.compile")
def test_compiled_norms_and_functions_that_read_the_flags_of_autocast_are_one_graph():
    result = python("-c", COMPILED)  # a process of its own: what the compiler finds at its import matters
    assert result.stdout.split() == ["3.0", "2.0"], result.stderr


# -- what cannot be redirected -----------------------------------------------------------------------------------------


UNSUPPORTED = [
    ("torch.cuda.CUDAGraph", ()),
    ("torch.cuda.graph", (None,)),
    ("torch.cuda.make_graphed_callables", (None, None)),
    ("torch.cuda.utilization", ()),
    ("torch.cuda.temperature", ()),
    ("torch.cuda.power_draw", ()),
    ("torch.cuda.caching_allocator_alloc", (8,)),
    ("torch.cuda.CUDAPluggableAllocator", ("a", "b", "c")),
    ("torch.cuda.ExternalStream", (0,)),
    ("torch.cuda.current_blas_handle", ()),
    ("torch.cuda.nccl.version", ()),
    ("torch.cuda.nccl.all_reduce", ([],)),
]


@pytest.mark.parametrize("name, arguments", [pytest.param(*row, marks=needs(row[0])) for row in UNSUPPORTED])
def test_what_cannot_be_redirected_raises(name, arguments):
    with pytest.raises(AmpNotImplementedError) as caught:
        torch_names.find(name)(*arguments)
    message = str(caught.value)
    assert message.startswith(name + " cannot be redirected to cpu: ") and "a machine with CUDA" in message


def test_names_without_a_row_raise_when_they_initialize_cuda():
    with pytest.raises(AmpError, match="^torch.cuda.[a-z_]+ cannot be redirected to cpu: it uses CUDA"):
        _through_torch_cuda()
    with pytest.raises(AmpError, match="^This use of CUDA cannot be redirected"):
        torch.cuda._lazy_init()
    with pytest.raises(AmpError, match=r"cudart\(\).cudaMalloc cannot be redirected"):
        torch.cuda.cudart().cudaMalloc(8)


def _through_torch_cuda():
    code = compile("def unknown_call():\n    torch.cuda._lazy_init()\n", "torch_cuda", "exec")
    names = {"torch": torch, "__name__": "torch.cuda.something"}
    exec(code, names)
    names["unknown_call"]()


@pytest.mark.filterwarnings("ignore:the imp module:DeprecationWarning")
def test_cuda_extensions_raise_and_others_do_not(tmp_path):
    from torch.utils import cpp_extension

    with pytest.raises(AmpNotImplementedError, match="CUDAExtension cannot be redirected"):
        cpp_extension.CUDAExtension("kernels", ["kernels.cu"])
    with pytest.raises(AmpNotImplementedError, match="load cannot be redirected.*compiles CUDA code"):
        cpp_extension.load("kernels", ["kernels.cpp", "kernels.cu"])
    with pytest.raises(AmpNotImplementedError, match="load_inline cannot be redirected"):
        cpp_extension.load_inline("kernels", cpp_sources=[], cuda_sources=["__global__ void f() {}"])
    assert cpp_extension.CppExtension("plain", ["plain.cpp"]).name == "plain"
