"""Compiled models train under diagnose, and the findings say that nobody looked into them."""

import pytest
import torch

import ampcompat
from ampcompat import amp
from ampcompat.runtime.forensics import Forensics

if not hasattr(torch, "compile"):
    pytest.skip("torch {} has no torch.compile".format(torch.__version__), allow_module_level=True)
pytest.importorskip("torch._dynamo", reason="imported here because its import changes torch")

torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # here, because the first time changes torch too


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_compiled_code_is_said_not_to_be_looked_at(each):
    model, forensics = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), Forensics()
    with ampcompat.session(each, observers=[forensics], verbosity=0):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer, init_scale=8.0)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for step in range(2):
            loss = compiled(torch.ones(2, 3)).sum() * (float("nan") if step else 1.0)
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
    torch._dynamo.reset()
    ((step, text),) = forensics.findings
    assert step == 1
    assert "The loss was nan" in text
    assert "what torch.compile or TorchScript has compiled is not looked into" in text
