"""Functions that are called at the steps of all optimizers: once at each."""

import pytest
import torch

from ampcompat.support.patching import PatchStack
from ampcompat.support.torch_compat import step_hooks

pytestmark = pytest.mark.skipif(not step_hooks.exist(), reason="torch has hooks on all optimizers from 2.0 on")


class Derived(torch.optim.SGD):
    """Its ``step`` calls that of its class; the first raises an error."""

    has_raised = False

    def step(self, closure=None):
        super().step(closure)
        if not self.has_raised:
            self.has_raised = True
            raise ValueError("once")


def test_a_step_that_calls_its_base_classs_and_one_after_an_error_count_once():
    params = [torch.nn.Parameter(torch.ones(2))]
    torch.optim.SGD(params, lr=1.0)  # from now on, torch calls hooks at its step
    optimizer, seen = Derived(params, lr=1.0), []
    with PatchStack() as patches:
        step_hooks.register(
            patches, lambda *args: seen.append(("before", step_hooks.running())), lambda *args: seen.append("after")
        )
        with pytest.raises(ValueError, match="once"):
            optimizer.step()
        optimizer.step()
    optimizer.step()
    assert seen == [("before", [optimizer]), ("before", [optimizer]), "after"] and step_hooks.running() == []
