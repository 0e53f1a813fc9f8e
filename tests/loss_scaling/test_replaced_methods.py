"""Methods of ``LossScaler`` that training loops replace, so that all ranks skip the same steps, and those they call."""

import pytest
import torch
from helpers import loops
from helpers.networks import INPUT, Product, each_setting, initialize, session_of

from ampcompat import amp
from ampcompat.engine.loss_scaling.loss_scaler import LossScaler
from ampcompat.engine.session import process_state


def begin(setting, loss_scale="dynamic"):
    model = Product(1.0).to(setting.high)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    initialize(setting, model, optimizer, loss_scale=loss_scale)
    return model, optimizer, process_state.current().scalers


def step(setting, model, optimizer, factor=2.0**-4):
    """Do one step; return whether it changed the weights."""
    before = [param.detach().clone() for param in amp.master_params(optimizer)]
    loops.step(factor * model(INPUT.to(setting.high)).sum(), optimizer)
    optimizer.zero_grad()
    return not all(map(torch.equal, before, [param.detach() for param in amp.master_params(optimizer)]))


class OverflowsElsewhere:
    """Makes the second of three updates an overflow, as if it had happened on another rank."""

    def __init__(self):
        self.found = []

    def merge(self, found_here):
        self.found.append(bool(found_here))
        return found_here or len(self.found) == 2


@each_setting
def test_update_scale_of_an_object_decides(setting, capsys):
    with session_of(setting, verbosity=1):
        model, optimizer, scalers = begin(setting)
        scaler, ranks, own = scalers[0], OverflowsElsewhere(), scalers[0].update_scale

        def update_scale():
            if not ranks.merge(own()):
                return False
            scaler._loss_scale, scaler._unskipped = 1024.0, 0
            return True

        scaler.update_scale = update_scale
        capsys.readouterr()
        assert [step(setting, model, optimizer) for _ in range(3)] == [True, False, True]
        assert ranks.found == [False] * 3
        assert (scaler.loss_scale(), scaler._unskipped) == (1024.0, 1)
        assert capsys.readouterr().out.count("Skipping step, loss scaler 0 reducing loss scale to 1024.0") == 1


@each_setting
def test_update_scale_of_the_class_decides(setting, monkeypatch):
    ranks = OverflowsElsewhere()

    def update_scale(self):
        assert not self._has_overflow  # of the last pass
        overflowed = ranks.merge(bool(self._overflow_buf.item()))
        self._loss_scale /= 2.0 if overflowed else 1.0
        self._has_overflow = overflowed
        return overflowed

    monkeypatch.setattr(LossScaler, "update_scale", update_scale)
    with session_of(setting):
        model, optimizer, scalers = begin(setting)
        assert [step(setting, model, optimizer) for _ in range(3)] == [True, False, True]
        assert not step(setting, model, optimizer, float("inf"))
        assert ranks.found == [False, False, False, True]
        assert scalers[0].loss_scale() == 65536.0 / 4.0


@each_setting
def test_unscale_of_a_subclass_may_add_an_overflow(setting):
    class Shared(LossScaler):
        ranks = OverflowsElsewhere()

        def unscale(self, *args, **kwargs):
            super(Shared, self).unscale(*args, **kwargs)
            self._overflow_buf.fill_(int(self.ranks.merge(self._overflow_buf.item())))
            self._has_overflow = self._overflow_buf.item()

    with session_of(setting):
        model, optimizer, scalers = begin(setting)
        scalers[0] = Shared("dynamic", 2.0**10)
        assert [step(setting, model, optimizer) for _ in range(3)] == [True, False, True]
        assert (scalers[0].loss_scale(), scalers[0]._unskipped) == (512.0, 1)


@each_setting
def test_both_are_called_at_a_static_scale_of_1_too(setting):
    with session_of(setting):
        model, optimizer, scalers = begin(setting, 1.0)
        scaler, ranks, unscaled = scalers[0], OverflowsElsewhere(), []
        scaler.update_scale = lambda: ranks.merge(False)
        assert [step(setting, model, optimizer) for _ in range(3)] == [True, False, True]
        del scaler.update_scale
        scaler.unscale = lambda grads, *args, **kwargs: unscaled.append(grads)
        assert step(setting, model, optimizer) and unscaled


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_unscale_divides_by_a_number_given_instead_of_the_scale(value):
    scaler, grads = LossScaler("dynamic"), [torch.tensor([8.0 * value]), torch.tensor([16.0])]
    scaler.unscale(grads, grads, None, models_are_masters=True, scale_override=4.0)
    assert grads[1].item() == 4.0
    assert scaler.update_scale() is (value != value)


@pytest.mark.parametrize("override, expected", [(None, 5.0), ((16.0, 2.0, 4.0), 38.0)])
def test_unscale_with_stashed_adds_gradients_of_earlier_passes(override, expected):
    scaler = LossScaler("dynamic", init_scale=64.0)
    new, earlier = torch.tensor([128.0], dtype=torch.float16), torch.tensor([3.0])
    scaler.unscale_with_stashed([new], [earlier], [earlier], scale_override=override)
    assert earlier.item() == expected
    assert new.item() == 128.0
    assert not scaler.update_scale()


def test_unscale_with_stashed_checks_the_new_gradients_only():
    for new, earlier in ((1.0, float("inf")), (float("inf"), 1.0)):
        scaler = LossScaler("dynamic")
        out = torch.zeros(1)
        scaler.unscale_with_stashed([torch.tensor([new])], [torch.tensor([earlier])], [out])
        assert out.item() == float("inf")
        assert scaler.update_scale() is (new == float("inf"))
