"""SyncBatchNorm over three gloo processes, against batch norm of the joint batch written in float64."""

import copy
import pickle
import warnings

import pytest
import syncbn_loops as loops
import torch
from helpers import ranks
from helpers.precision import IS_STAND_IN

from ampcompat.apex.parallel import SyncBatchNorm, convert_syncbn_model, create_syncbn_process_group

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

TOLERANCE = {"float64": 1e-11, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
ALL_CASES = [pytest.param(name, id=name) for name in loops.CASES] + [
    pytest.param(name, marks=pytest.mark.skipif(IS_STAND_IN, reason="this torch has no half arithmetic on the CPU"))
    for name in loops.HALF_CASES
]


@pytest.fixture(scope="module")
def outcomes():
    return ranks.run(loops.every_case, not IS_STAND_IN, world_size=3)


class Reference:
    """Batch norm in float64, from its definition, differentiated by autograd."""

    def __init__(self, keywords):
        norm = loops.set_up(SyncBatchNorm(loops.CHANNELS, **keywords))
        self.params = [param.detach().double().requires_grad_() for param in norm.parameters()]
        self.momentum = keywords.get("momentum", 0.1)
        self.mean, self.variance = torch.zeros(loops.CHANNELS).double(), torch.ones(loops.CHANNELS).double()
        self.count = 0

    def scaled(self, input, mean, variance):
        shape = (1, -1) + (1,) * (input.dim() - 2)
        output = (input - mean.view(shape)) / (variance.view(shape) + 1e-5).sqrt()
        if self.params:
            output = output * self.params[0].view(shape) + self.params[1].view(shape)
        return output

    def train(self, input):
        flat = input.transpose(0, 1).reshape(loops.CHANNELS, -1)
        mean = flat.sum(1) / flat.shape[1]
        squares = (flat - mean.view(-1, 1)).pow(2).sum(1)
        self.count += 1
        share = 1.0 / self.count if self.momentum is None else self.momentum
        self.mean = (1 - share) * self.mean + share * mean.detach()
        self.variance = (1 - share) * self.variance + share * squares.detach() / (flat.shape[1] - 1)
        return self.scaled(input, mean, squares / flat.shape[1])


@pytest.mark.parametrize("name", ALL_CASES)
def test_it_equals_batch_norm_of_the_joint_batch(outcomes, name):
    shape, dtype, keywords, sizes = dict(loops.CASES, **loops.HALF_CASES)[name]
    reference = Reference(keywords)
    found = [outcome[name] for outcome in outcomes]
    for step in range(2):
        input, grad, z = (torch.cat(parts).double() for parts in zip(*loops.shares(name, step)))
        input.requires_grad_()
        for param in reference.params:
            param.grad = None
        output = reference.train(input)
        output = torch.relu(output + z) if "fuse_relu" in keywords else output
        output.backward(grad)
        assert_close([each[0][step][0] for each in found], output.detach(), dtype, name)
        assert_close([each[0][step][1] for each in found], input.grad, dtype, name)
    for index, param in enumerate(reference.params):
        total = sum(each[1][index].double() for each in found)
        assert (total - param.grad).abs().max() <= 20 * TOLERANCE[dtype] * (100 if name == "large mean" else 1)
    if keywords.get("track_running_stats", True):
        assert_statistics(found, reference, dtype, input, keywords, z)


def assert_close(parts, expected, dtype, name):
    assert all(part.dtype is getattr(torch, dtype) for part in parts)
    # With a mean of 1000 and a deviation of 2 the float32 input itself has lost 9 bits.
    tolerance = TOLERANCE[dtype] * (100 if name == "large mean" else 1)
    assert (torch.cat(parts).double() - expected).abs().max() <= tolerance * max(1.0, expected.abs().max().item())


def assert_statistics(found, reference, dtype, input, keywords, z):
    expected = reference.scaled(input.detach(), reference.mean, reference.variance)
    expected = torch.relu(expected) if "fuse_relu" in keywords else expected
    evaluated = torch.cat([each[3] for each in found]).detach().double()
    assert (evaluated - expected).abs().max() <= 4 * TOLERANCE[dtype] * expected.abs().max()
    for _, _, buffers, _ in found:
        assert buffers["num_batches_tracked"].item() == 2
        for name, expected in (("running_mean", reference.mean), ("running_var", reference.variance)):
            assert (buffers[name].double() - expected).abs().max() <= max(
                TOLERANCE[dtype], 1e-11
            ) * expected.abs().max()


def test_ranks_of_other_groups_have_no_effect(outcomes):
    shares = [share[0] for share in loops.shares("uneven images", 0)]
    expected = [Reference({}).train(torch.cat(shares[:2])), Reference({}).train(shares[2])]
    for index in range(2):  # the norm itself, and a deep copy of it
        found = [outcome["groups"][index] for outcome in outcomes]
        for one, other in ((torch.cat(found[:2]), expected[0]), (found[2], expected[1])):
            assert (one - other).abs().max() <= 1e-11


def test_groups_have_consecutive_ranks(outcomes):
    for none, size, error in (outcome["create"] for outcome in outcomes):
        assert none is None and size == 1 and "3 processes" in error
    assert create_syncbn_process_group(0) is None


@pytest.mark.parametrize("each", LEVELS)
def test_a_converted_model_trains_on_three_ranks_as_the_plain_one_does_on_the_joint_batch(outcomes, each):
    if IS_STAND_IN and each != "O0":
        pytest.skip("float32 stands in for half here, and this torch may lack the mixed batch norm of the reference")
    alone = loops.train(0, each, 1)
    tolerance = {"O0": 1e-5, "O1": 4e-3, "O2": 4e-3, "O3": 8e-3}.get(each, 3e-2)
    for name, reference in alone.items():
        for outcome in outcomes:
            found = outcome["trained"][each][name]
            assert found.dtype is reference.dtype
            assert (found - reference).abs().max() <= tolerance * max(1.0, reference.abs().max().item())


def test_converting_keeps_params_statistics_mode_and_sharing():
    norm = torch.nn.BatchNorm2d(3, eps=1e-3, momentum=0.2)
    bare = torch.nn.BatchNorm1d(2, affine=False)
    net = torch.nn.Sequential(norm, torch.nn.Sequential(norm), torch.nn.InstanceNorm2d(3), bare)
    net.eval()
    params, buffers = dict(net.named_parameters()), dict(net.named_buffers())
    converted = convert_syncbn_model(net, channel_last=True)
    assert converted is net and type(net[0]) is SyncBatchNorm and net[1][0] is net[0]
    assert type(net[2]) is torch.nn.InstanceNorm2d and type(net[3]) is SyncBatchNorm
    assert (net[0].eps, net[0].momentum, net[0].channel_last, net[0].training) == (1e-3, 0.2, True, False)
    assert all(param is params[name] for name, param in net.named_parameters())
    assert all(buffer is buffers[name] for name, buffer in net.named_buffers())
    assert type(convert_syncbn_model(torch.nn.BatchNorm1d(2))) is SyncBatchNorm


def test_without_a_process_group_it_is_batch_norm():
    torch.manual_seed(0)
    norm, plain = SyncBatchNorm(3).double(), torch.nn.BatchNorm1d(3).double()
    inputs = torch.randn(7, 3).double()
    assert (norm(inputs) - plain(inputs)).abs().max() <= 1e-12
    assert (norm.running_var - plain.running_var).abs().max() <= 1e-12
    assert torch.equal(norm.eval()(inputs), copy.deepcopy(norm)(inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 1.5 would rather have torch.save called
        clone = pickle.loads(pickle.dumps(norm))
    assert torch.equal(clone(inputs), norm(inputs))
    with pytest.raises(ValueError, match="3 channels"):
        norm(torch.randn(7, 4).double())
