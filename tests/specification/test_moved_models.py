"""Models that are moved to another device after ``initialize``, on fake devices."""

import pytest
import torch
from helpers.fake_devices import FakeDevice, data_moves, features_of_cuda, move, needs_fakes
from helpers.networks import initialize, session_of, settings_at

from ampcompat import amp

pytestmark = [
    needs_fakes,
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
]
cast_weights = settings_at("O2", "O3", "O5", stored=True)
WAYS = {"there": ("cpu", "cuda"), "back": ("cuda", "cpu")}
each_way = pytest.mark.parametrize("way", sorted(WAYS))


@pytest.fixture(autouse=True)
def on_cuda():
    with features_of_cuda(), data_moves():
        yield


class Lab:
    """A network of fake tensors and its optimizer, initialized on one device and moved to another."""

    def __init__(self, setting, way, steps_before=1):
        self.first, self.second = (FakeDevice(name) for name in WAYS[way])
        self.second.mode = self.first.mode
        network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
        self.model = move(network, self.first)
        self.setting = setting
        self.steps_before = steps_before

    def begin(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        initialize(self.setting, self.model, self.optimizer, loss_scale=8.0)
        for _ in range(self.steps_before):
            self.step()

    def step(self):
        device = next(iter(self.model.parameters())).device
        loss = self.model(torch.ones(3, 4, device=device)).float().sum()
        with amp.scale_loss(loss, self.optimizer):
            for param in self.model.parameters():  # by hand, since backward needs a device guard
                param.grad = torch.ones_like(param)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def move(self):
        """Do as ``model.to(device)`` does with real tensors; it would exchange fake ones by ``swap_tensors``."""
        for param in self.model.parameters():
            param.data = self._moved(param)
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = self._moved(buffer)

    def _moved(self, tensor):
        return self.second.put(torch.ones(tensor.shape, dtype=tensor.dtype))


@cast_weights
@each_way
@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_moved_model_has_its_state_dict_in_float32_where_it_is(setting, way, steps_before):
    lab = Lab(setting, way, steps_before)
    with lab.first.running(), session_of(setting):
        lab.begin()
        lab.move()
        state = lab.model.state_dict()
        assert {each.device.type for each in state.values()} == {WAYS[way][1]}
        assert {each.dtype for each in state.values() if each.is_floating_point()} == {setting.high}


@cast_weights
@each_way
def test_a_moved_model_trains_on_where_it_is(setting, way):
    lab = Lab(setting, way)
    with lab.first.running(), session_of(setting):
        lab.begin()
        lab.move()
        for _ in range(2):
            lab.step()
        assert {param.device.type for param in lab.model.parameters()} == {WAYS[way][1]}
        assert {param.device.type for param in amp.master_params(lab.optimizer)} == {WAYS[way][1]}


@settings_at("O2", "O5", stored=True)
@each_way
def test_a_second_optimizer_of_a_moved_model_has_the_masters_of_the_first(setting, way):
    lab = Lab(setting, way)
    with lab.first.running(), session_of(setting):
        lab.begin()
        lab.move()
        second = torch.optim.SGD(lab.model.parameters(), lr=0.1)
        initialize(setting, lab.model, second, loss_scale=8.0)
        masters = list(amp.master_params(second))
        assert {master.device.type for master in masters} == {WAYS[way][1]}
        assert all(one is other for one, other in zip(masters, amp.master_params(lab.optimizer)))
        lab.step()


@cast_weights
@each_way
def test_a_moved_model_stays_where_it_is_after_the_session(setting, way):
    lab = Lab(setting, way)
    with lab.first.running():
        with session_of(setting):
            lab.begin()
            lab.move()
        assert {param.device.type for param in lab.model.parameters()} == {WAYS[way][1]}
        assert {param.dtype for param in lab.model.parameters()} == {setting.high}
        params = [param for group in lab.optimizer.param_groups for param in group["params"]]
        assert all(param is own for param, own in zip(params, lab.model.parameters()))


@settings_at("O1", "O4")
def test_casts_follow_a_model_that_is_moved_param_by_param(setting):
    lab = Lab(setting, "there")
    with lab.first.running(), session_of(setting):
        lab.begin()
        assert moved_product(lab) is setting.high
        lab.move()
        lab.model(torch.ones(3, 4, device="cuda"))
        assert moved_product(lab) is setting.low


def moved_product(lab):
    """Return the dtype of a product on the device that the model is moved to."""
    x = lab.second.put(torch.ones(2, 2))
    return torch.mm(x, x).dtype
