"""Compiled models train under diagnose, and the findings say that their outputs were not recorded."""

import pytest
import torch
from helpers import compilers, loops

import ampcompat
from ampcompat import amp
from ampcompat.observers.skipped_steps.diagnosis import OverflowDiagnosis

if not hasattr(torch, "compile"):
    pytest.skip(f"torch {torch.__version__} has no torch.compile", allow_module_level=True)
if not compilers.TELLS_THAT_IT_TRACES:
    pytest.skip("ampcompat cannot tell that this torch compiles: the casts split its graphs", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("compiler_forgets")


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_findings_say_that_compiled_code_runs_no_hooks(each):
    if not compilers.traces_bound_methods():
        pytest.skip("the compiler of this torch splits the graph where a bound method is called")
    model, diagnosis = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), OverflowDiagnosis()
    with ampcompat.session(each, observers=[diagnosis], verbosity=0):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer, init_scale=8.0)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for step in range(2):
            loss = compiled(torch.ones(2, 3)).sum() * (float("nan") if step else 1.0)
            loops.step(loss, optimizer)
    ((step, text, _),) = diagnosis.findings
    assert step == 1
    assert "The loss was nan" in text
    assert "code compiled by torch.compile or TorchScript runs no hooks" in text
