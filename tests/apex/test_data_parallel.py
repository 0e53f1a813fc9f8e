"""DataParallelModel and DataParallelCriterion: what one device computes on the whole batch, from parts on several."""

import collections

import pytest
import torch
from helpers import loops
from helpers.networks import each_setting, initialize, session_of

from ampcompat import amp
from ampcompat.apex.parallel import DataParallelCriterion, DataParallelModel, gather

#: Of the largest gradient, by level: parts of a batch are rounded by themselves.
TOLERANCE = {"O0": 1e-6, "O1": 2e-3, "O2": 2e-3, "O3": 4e-3, "O4": 1.6e-2, "O5": 1.6e-2}
Pair = collections.namedtuple("Pair", "logits hidden")


class Net(torch.nn.Module):
    """Two layers with a buffer; ``kind`` selects what it returns."""

    def __init__(self, kind="tensor"):
        super().__init__()
        torch.manual_seed(3)
        self.body, self.head, self.kind = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3), kind
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, factor=None):
        self.calls += 1
        hidden = torch.tanh(self.body(x))
        logits = self.head(hidden)
        if factor is not None:
            logits = logits * factor
        kinds = {"tensor": logits, "dict": {"logits": logits, "none": None}, "named": Pair(logits, hidden)}
        return kinds[self.kind]


def make_batch(setting=None, size=7):
    torch.manual_seed(4)
    x, labels = torch.randn(size, 6), torch.randint(0, 3, (size,))
    return x if setting is None else x.to(setting.high), labels


def gradients(setting, devices, reduction, size=7):
    """Return (loss, unscaled gradients) of one pass; without devices, of a plain module."""
    with session_of(setting):
        model = Net().to(setting.high)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        initialize(setting, model, optimizer, loss_scale=2.0**3)
        criterion = torch.nn.CrossEntropyLoss(reduction=reduction)
        if devices is not None:
            model, criterion = DataParallelModel(model, devices), DataParallelCriterion(criterion, devices)
        x, labels = make_batch(setting, size)
        loss = criterion(model(x), labels)
        loops.backward(loss.sum(), optimizer)
        return loss.detach().double(), [param.grad.double() for param in amp.master_params(optimizer)]


@each_setting
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_parts_on_devices_give_the_loss_and_gradients_of_the_whole(setting, reduction):
    loss, grads = gradients(setting, None, reduction)
    for devices in (["cpu"], ["cpu"] * 3):
        found, parts = gradients(setting, devices, reduction)
        assert found.shape == loss.shape
        assert torch.allclose(found, loss, rtol=TOLERANCE[setting.level], atol=TOLERANCE[setting.level])
        for part, whole in zip(parts, grads):
            assert (part - whole).abs().max() <= 2 * TOLERANCE[setting.level] * max(1e-2, whole.abs().max())


def test_fewer_samples_than_devices_use_fewer_devices():
    model = DataParallelModel(Net(), ["cpu"] * 4)
    criterion = DataParallelCriterion(torch.nn.CrossEntropyLoss(), ["cpu"] * 4)
    x, labels = make_batch(size=2)
    outputs = model(x)
    assert [len(output) for output in outputs] == [1, 1]
    plain = torch.nn.functional.cross_entropy(Net()(x), labels)
    assert torch.allclose(criterion(outputs, labels), plain)


@pytest.mark.parametrize("kind", ["tensor", "dict", "named"])
def test_outputs_are_separate_until_they_are_gathered(kind):
    model, x = DataParallelModel(Net(kind), ["cpu", "cpu"]), make_batch()[0]
    outputs = model(x)
    assert isinstance(outputs, tuple) and len(outputs) == 2
    whole, plain = gather(outputs), Net(kind)(x)
    assert type(whole) is type(plain)
    part = {"tensor": lambda each: each, "dict": lambda each: each["logits"], "named": lambda each: each.logits}[kind]
    assert torch.allclose(part(whole), part(plain), atol=1e-6)
    part(whole).sum().backward()
    assert model.module.body.weight.grad is not None


def test_losses_gather_as_a_vector():
    assert gather((torch.tensor(1.0), torch.tensor(2.0)), "cpu").tolist() == [1.0, 2.0]


def test_keywords_are_divided_too_and_what_is_no_tensor_goes_to_every_device():
    x, labels = make_batch(size=4)
    factor = torch.arange(4.0).view(4, 1)
    model = DataParallelModel(Net(), ["cpu", "cpu"])
    assert torch.allclose(gather(model(x, factor=factor)), Net()(x, factor), atol=1e-6)
    assert torch.allclose(gather(model(x, factor=2.0)), Net()(x, 2.0), atol=1e-6)


def test_only_the_first_devices_buffers_last_as_on_gpus():
    model = DataParallelModel(Net(), ["cpu"] * 3)
    model(make_batch()[0])
    assert model.module.calls.item() == 1.0


def test_a_criterion_without_targets_and_a_function_of_outputs():
    class Spread(torch.nn.Module):
        def forward(self, output):
            return output.pow(2).mean()

    x = make_batch(size=6)[0]
    model, criterion = DataParallelModel(Net(), ["cpu"] * 2), DataParallelCriterion(Spread(), ["cpu"] * 2)
    assert torch.allclose(criterion(model(x)), Net()(x).pow(2).mean())


def test_a_wrapped_model_is_refused_by_initialize():
    with pytest.raises(RuntimeError, match="wrapped in DataParallel"):
        amp.initialize(DataParallelModel(Net(), ["cpu"]))


def test_state_dict_has_the_prefix_of_other_wrappers():
    assert all(name.startswith("module.") for name in DataParallelModel(Net(), ["cpu"]).state_dict())


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: DataParallelModel(Net(), []), "pass device_ids="),
        (lambda: DataParallelModel(Net(), ["cpu", "cuda:0"]), "all GPUs or all CPU devices"),
        (lambda: DataParallelModel("net", ["cpu"]), "expected a torch.nn.Module, not str"),
        (lambda: DataParallelCriterion(torch.nn.MSELoss(), ["cpu"], reduction="max"), "not 'max'"),
        (lambda: DataParallelCriterion(torch.nn.MSELoss(), ["cpu"])(torch.ones(2), torch.ones(2)), "the tuple of"),
        (lambda: DataParallelCriterion(torch.nn.MSELoss(), ["cpu"])((torch.ones(2),) * 2, torch.ones(4)), "same batch"),
        (lambda: gather(torch.ones(2)), "the tuple of"),
        (lambda: gather(("a", "b"), "cpu"), "not str"),
    ],
)
def test_what_cannot_be_divided_or_joined_is_an_error(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()


def test_gpus_by_themselves_agree_with_one(level):
    if torch.cuda.device_count() < 2:
        pytest.skip(f"this machine has {torch.cuda.device_count()} GPUs, and it takes two")
    results = []
    for devices in ([0], [0, 1]):
        net = Net().cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        amp.initialize(net, optimizer, opt_level=level, verbosity=0, loss_scale=8.0)
        model = DataParallelModel(net, devices)
        criterion = DataParallelCriterion(torch.nn.CrossEntropyLoss(), devices)
        x, labels = (each.cuda() for each in make_batch(size=8))
        outputs = model(x)
        assert [output.device.index for output in outputs] == devices
        loops.backward(criterion(outputs, labels), optimizer)
        results.append([param.grad.double() for param in amp.master_params(optimizer)])
    for part, whole in zip(*results):
        assert (part - whole).abs().max() <= 2 * TOLERANCE[level] * max(1e-2, whole.abs().max())
