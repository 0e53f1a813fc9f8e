"""``OptimizerTwin``: repeating a step changes nothing of an optimizer that has another one, or masters, inside."""

import pytest
import torch
from planted import mlp, train

from ampcompat.support.torch_compat import features
from ampcompat.tools.audit.audit import Audit

pytestmark = pytest.mark.skipif(not features.is_version_within(oldest="2.4"), reason="an audit is tried from 2.4 on")


class Outer(torch.optim.Optimizer):
    """Steps with another optimizer, of the same params."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.inner = torch.optim.AdamW(self.param_groups[0]["params"], lr=lr)

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()


class OwnMasters(torch.optim.Optimizer):
    """SGD with float32 masters, which it has in a list."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.masters = [param.detach().float() for param in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        for param, master in zip(self.param_groups[0]["params"], self.masters):
            master -= self.param_groups[0]["lr"] * param.grad.float()
            param.copy_(master)


@pytest.mark.parametrize("kind, wrong", [(Outer, {"lost_updates"}), (OwnMasters, set())])
def test_the_training_is_bitwise_unchanged_and_the_answer_right(kind, wrong):
    plain, observed = mlp(), mlp()
    train(plain, kind(plain.parameters(), lr=1e-4), steps=30)
    with Audit([]) as audit:
        train(observed, kind(observed.parameters(), lr=1e-4), steps=30)
    assert all(map(torch.equal, plain.parameters(), observed.parameters()))
    assert {each["kind"] for each in audit.wrong} == wrong
    assert audit.report()["steps"] == (60 if kind is Outer else 30)  # those of the twins do not count
