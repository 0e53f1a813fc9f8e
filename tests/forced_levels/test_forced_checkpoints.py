"""Checkpoints of scripts under a forced level: plain torch's, and resumed bit for bit."""

import copy
import io

import pytest
import torch
from amp_by_hand import SMALL, assert_equal
from torch import nn

from ampcompat import amp
from ampcompat.engine.optimizers.optimizer_record import record_of
from ampcompat.launch.forced_levels.forced_level import forced, is_supported

if not is_supported():
    pytest.skip("forced levels need torch 2.1", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("quiet")


class Script:
    """A loop that saves and loads."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.scaler = torch.amp.GradScaler("cpu") if hasattr(torch.amp, "GradScaler") else None

    def train(self, steps):
        for index in range(steps):
            self.optimizer.zero_grad()
            inputs = torch.arange(8.0).view(2, 4) + index
            loss = self.model(inputs).pow(2).sum() * SMALL
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
        return self

    def parts(self):
        return [self.model, self.optimizer, self.scheduler, self.scaler]

    def save(self):
        file = io.BytesIO()
        torch.save([part.state_dict() for part in self.parts()], file)
        return file

    def load(self, file):
        file.seek(0)
        for part, state in zip(self.parts(), torch.load(file)):
            part.load_state_dict(state)
        return self


needs_scaler = pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="torch.amp.GradScaler is of torch 2.3")


def tensors(value):
    """Return the tensors of nested state dicts."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value, key=str)]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors(each)]
    return [value] if isinstance(value, torch.Tensor) else []


@needs_scaler
def test_training_resumes_bit_for_bit(level):
    with forced(level):
        file = Script().train(3).save()
    with forced(level):
        script = Script().load(file).train(2)
        # The inputs of a resumed script begin anew, so the expected run repeats them.
        resumed = copy.deepcopy([each.state_dict() for each in script.parts()])
    with forced(level):
        whole = Script().train(3)
        whole.train(2)
        assert_equal(tensors(resumed), tensors([each.state_dict() for each in whole.parts()]))


@needs_scaler
def test_a_checkpoint_loads_without_a_level_and_the_other_way_round(level):
    with forced(level):
        file = Script().train(2).save()
    plain = Script().load(file)
    assert all(each.dtype is torch.float32 for each in plain.model.parameters())
    plain.train(1)
    file = plain.save()
    with forced(level):
        script = Script().load(file).train(1)
        assert record_of(script.optimizer) is not None


def test_half_models_get_float32_weights_or_masters(level):
    def made():
        torch.manual_seed(0)
        model = nn.Linear(4, 2).half()
        return model, torch.optim.SGD(model.parameters(), lr=0.5)

    with forced(level):
        model, optimizer = made()
        first = model.weight.detach().float()
        (model(torch.ones(2, 4)).sum() * SMALL).backward()
        optimizer.step()
        policy = record_of(optimizer).configuration.policy
        if policy.opt_level != "O3":
            assert all(each.dtype is torch.float32 for each in amp.master_params(optimizer))
            assert torch.allclose(model.state_dict()["weight"], first - SMALL, atol=1e-6)
        assert model.weight.dtype is (policy.weights_dtype or torch.float32)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_the_notice_says_what_precision_the_first_weights_have(level, half, capsys, monkeypatch):
    monkeypatch.delenv("AMPCOMPAT_VERBOSITY")
    model = nn.Linear(4, 2).to(half)
    amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.5), opt_level=level, allow_half_model=True)
    assert f"{str(half)[6:]} weights" in capsys.readouterr().out
