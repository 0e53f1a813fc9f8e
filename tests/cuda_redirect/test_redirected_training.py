"""Training under the redirection equals training on the device, bit for bit; and targets other than the CPU."""

import contextlib

import pytest
import redirected_ranks
import torch
from helpers import loops, ranks
from helpers.precision import IS_STAND_IN
from torch import nn

import ampcompat
from ampcompat import amp
from ampcompat.cuda_redirect import redirect_device
from ampcompat.launch.cuda_redirect.redirection import Target


def trained(level, device):
    """Return the weights after three steps of a loop that sends everything to ``device``."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).to(device)
    model = model.double() if IS_STAND_IN else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=8.0, verbosity=0)
    for _ in range(3):
        x = torch.randn(8, 4, device=device).to(model[0].weight.dtype)
        loss = nn.functional.cross_entropy(model(x), torch.arange(8, device=device) % 2)
        optimizer.zero_grad()
        loops.step(loss, optimizer)
    weights = [param.detach().clone() for param in amp.master_params(optimizer)]
    ampcompat.reset()
    return weights


@pytest.mark.parametrize("failing", [False, True])
def test_a_session_that_was_opened_inside_is_closed_with_the_block(level, failing):
    model = nn.Linear(2, 2)
    with contextlib.suppress(ZeroDivisionError):
        with redirect_device("cpu"):
            amp.initialize(model.cuda(), torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, verbosity=0)
            if failing:
                1 / 0
    assert ampcompat.current() is None and model.weight.dtype is torch.float32


def test_a_session_that_was_open_before_stays_open():
    with ampcompat.session("O0", verbosity=0) as before:
        with redirect_device("cpu"):
            pass
        assert ampcompat.current() is before


def test_amp_trains_as_on_the_device_itself(level):
    expected = trained(level, "cpu")
    with redirect_device("cpu"):
        found = trained(level, "cuda")
    assert all(torch.equal(one, other) for one, other in zip(found, expected)) and len(found) == len(expected)


@pytest.fixture
def on_meta():
    """Redirect CUDA to the meta device, which every machine has."""
    try:
        torch.empty(1, device="meta")
    except RuntimeError:
        pytest.skip("this torch has no tensors on the device meta")
    with redirect_device("meta") as target:
        yield target


MOVES = [
    lambda: torch.zeros(2, device="cuda"),
    lambda: torch.zeros(2).cuda(),
    lambda: torch.zeros(2).to("cuda:1"),
    lambda: torch.zeros(2).to(0),
    lambda: nn.Linear(2, 2).cuda().weight,
    lambda: nn.Linear(2, 2).to(torch.device("cuda")).weight,
    lambda: torch.zeros(2).type("torch.cuda.DoubleTensor"),
    lambda: torch.cuda.FloatTensor([1.0]),
]


@pytest.mark.parametrize("move", MOVES)
def test_on_another_device_cpu_tensors_are_no_cuda_tensors(on_meta, move):
    moved = move()
    assert moved.device.type == "meta" and moved.is_cuda and moved.get_device() == 0
    assert not torch.zeros(2).is_cuda and torch.zeros(2).type() == "torch.FloatTensor"
    assert torch.zeros(2, device="cpu").device.type == "cpu"


class FourDevices(Target):
    """A target of four devices, as a machine with four of them would have."""

    def __init__(self):
        super().__init__("cpu")
        self._devices = [torch.device("cuda", index) for index in range(4)]


@pytest.mark.parametrize(
    "expected, index",
    [("cuda:2", 2), (3, 3), (torch.device("cuda", 5), 1), ("cuda", 0), (torch.device("cuda"), 0)],
    ids=str,
)
def test_indices_are_kept_where_there_are_several_devices(expected, index):
    assert FourDevices().translated(expected) == torch.device("cuda", index)


def test_a_device_without_an_index_is_the_current_one():
    target = FourDevices()
    target.current = 3
    assert target.translated("cuda") == torch.device("cuda", 3)


@pytest.mark.parametrize("value", [None, "cpu", "cudax", torch.device("cpu"), torch.float32, True, 1.5, "mps"], ids=str)
def test_other_devices_are_not_translated(value):
    assert Target("cpu").translated(value) is value


def test_the_backend_of_a_process_group_is_replaced_by_name():
    from ampcompat.launch.cuda_redirect.replacements.device_arguments import RULES

    backends = {"nccl": "gloo", "NCCL": "gloo", "cpu:gloo,cuda:nccl": "gloo", "gloo": "gloo", "mpi": "mpi", None: None}
    assert {name: RULES["backend"](Target("cpu"), name) for name in backends} == backends


def test_ranks_with_nccl_and_a_gpu_each(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    for rank, found in enumerate(ranks.run(redirected_ranks.train, str(tmp_path))):
        backend, device, total, (mean, expected), gradient, first = found
        assert (backend, device, total.tolist()) == ("gloo", rank, [3.0, 3.0])
        assert torch.allclose(mean, expected, rtol=1e-4) and torch.equal(gradient, first)
