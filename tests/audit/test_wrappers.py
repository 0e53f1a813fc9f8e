"""Optimizers with another one, or masters, inside: a step is one step, and repeating it changes nothing of them."""

import planted
import pytest
import torch
from planted import mlp, train

import ampcompat.diagnostics.audit.audit as audit_module
from ampcompat.diagnostics.audit.audit import Audit
from ampcompat.support.live_objects import all_objects
from ampcompat.support.torch_compat import features

pytestmark = pytest.mark.skipif(not features.is_version_within(oldest="2.4"), reason="an audit is tried from 2.4 on")


class Outer(torch.optim.Optimizer):
    """Steps with another optimizer, of the same params."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.inner = torch.optim.AdamW(self.param_groups[0]["params"], lr=lr)

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()


class Partly(torch.optim.Optimizer):
    """Steps with another optimizer for the first param, and by itself for the others."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.inner = torch.optim.AdamW(self.param_groups[0]["params"][:1], lr=lr)

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()
        for param in self.param_groups[0]["params"][1:]:
            param -= self.param_groups[0]["lr"] * param.grad.sign()


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


class Decayed(torch.optim.SGD):
    """SGD whose ``step`` calls that of its class."""

    @torch.no_grad()
    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            param.mul_(1 - 1e-6)
        return super().step(closure)


@pytest.mark.parametrize(
    "kind, wrong",
    [(Decayed, ["Decayed"]), (Outer, ["AdamW"]), (Partly, ["Partly", "AdamW"]), (OwnMasters, [])],
    ids=lambda value: str(value),
)
def test_the_training_is_bitwise_unchanged_and_the_answer_right(kind, wrong):
    torch.optim.SGD(mlp().parameters())  # from now on, torch calls hooks at its step
    plain, observed = mlp(), mlp()
    train(plain, kind(plain.parameters(), lr=1e-4), steps=30)
    with Audit([]) as audit:
        train(observed, kind(observed.parameters(), lr=1e-4), steps=30)
    assert all(map(torch.equal, plain.parameters(), observed.parameters()))
    report = audit.report()
    assert [each["text"].split()[0] for each in audit.wrong] == wrong
    assert {each["kind"] for each in audit.wrong} <= {"lost_updates"}
    layers = [layer["name"] for each in audit.wrong for layer in each["layers"]]
    assert len(layers) == len(set(layers))
    assert report["steps"] == 30  # those of the twins do not count


def test_a_step_that_raised_contains_no_later_ones():
    class Raises(torch.optim.SGD):
        def step(self, closure=None):
            raise ValueError("no step")

    model = mlp()
    with Audit([]) as audit:
        with pytest.raises(ValueError, match="no step"):
            Raises(model.parameters(), lr=1e-4).step()
        train(model, torch.optim.AdamW(model.parameters(), lr=1e-4), steps=5)
    assert audit.report()["steps"] == 5
    assert [each["text"].split()[0] for each in audit.wrong] == ["AdamW"]


def test_an_optimizer_for_each_param_is_one_finding_and_modules_are_looked_for_once(monkeypatch):
    looks = []
    monkeypatch.setattr(audit_module, "all_objects", lambda *classes: looks.append(1) or all_objects(*classes))
    model = mlp()
    optimizers = {param: torch.optim.AdamW([param], lr=1e-5) for param in model.parameters()}

    def step(param):
        optimizers[param].step()
        param.grad = None

    for param in optimizers:
        param.register_post_accumulate_grad_hook(step)
    with Audit([]) as audit:
        for _ in range(planted.STEPS):
            model(torch.randn(8, 16).bfloat16()).float().pow(2).mean().backward()
    (found,) = audit.wrong
    assert {each["name"] for each in found["layers"]} >= {"0.weight", "1.weight", "2.weight"}
    assert f"after {planted.STEPS} steps" in found["text"] and len(looks) == 1


def test_optimizers_that_are_made_anew_are_one_finding_about_all_steps():
    model = mlp()
    first = {name: param.detach().clone() for name, param in model.named_parameters()}
    with Audit([]) as audit:
        for _ in range(3):
            train(model, torch.optim.AdamW(model.parameters(), lr=1e-4), steps=6)
    (found,) = audit.wrong
    unmoved = {name: int((param == first[name]).sum()) for name, param in model.named_parameters()}
    assert {each["name"]: each["unmoved"] for each in found["layers"]}.items() <= unmoved.items()
    assert "after 18 steps" in found["text"]
