"""Checksums of the data of a run's first steps: equal at every level and unchanged, other for other data."""

from typing import Dict

import pytest
import torch
from helpers import half_kernels

from ampcompat.abtest.recording import forced_run, recorder
from ampcompat.abtest.recording.recorder import Recorder
from ampcompat.launch.forced_levels.forced_level import forced, is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1")


@pytest.fixture(autouse=True)
def real_halves(torch_is_left_untouched, request, monkeypatch):
    """Let levels mean half where the suite has a stand-in for it, which computes in float64 at O0."""
    half_kernels.without_stand_in(request.node.name, monkeypatch)


class Wrapped(torch.nn.Module):
    """A model that is called with a keyword, and calls another one with what it makes of it."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)

    def forward(self, *, inputs: Dict[str, torch.Tensor]):
        return self.inner(inputs["x"] * 2)


def train(seed, with_loader, steps=4, around=lambda model: model):
    torch.manual_seed(0)
    model = Wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model = around(model)
    rows = torch.randn(2 * steps, 4, generator=torch.Generator().manual_seed(seed))
    for batch in torch.utils.data.DataLoader(rows, batch_size=2) if with_loader else rows.split(2):
        loss = model(inputs={"x": batch}).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def recorded(level, *args, **options):
    """Return the run of a training that knows nothing of amp, unchanged or at a forced level."""
    recorder = Recorder()
    plain = forced_run.RunOptions(verbosity=0, losses_by_line=True)
    with forced_run.recorded_at(level, recorder, plain), forced(level):
        end = forced_run.run_to_end(recorder, lambda: train(*args, **options), ())
    assert end["end"] == "ok", end
    return recorder.run


@pytest.mark.parametrize("with_loader", [False, True])
def test_checksums_tell_equal_data_from_other_data_at_every_level(with_loader):
    unchanged, other = recorded(None, 1, with_loader), recorded(None, 2, with_loader)
    assert len(set(unchanged.inputs)) == 4 and 0 not in unchanged.inputs
    assert unchanged.loaded.count(0) == (0 if with_loader else 4)
    for level in ("O0", "O2", "O4"):
        run = recorded(level, 1, with_loader)
        assert (run.loaded, run.inputs) == (unchanged.loaded, unchanged.inputs)
    assert not set(other.inputs) & set(unchanged.inputs)
    assert not with_loader or not set(other.loaded) & set(unchanged.loaded)


def test_checksums_end_after_the_first_steps_and_leave_the_measured_memory_alone(monkeypatch):
    monkeypatch.setattr(recorder, "STEPS", 2)
    few = recorded("O2", 1, False, 6)
    assert len(few.inputs) == 2 and len(few.step_seconds) == 6 and few.memory.peak_total
    monkeypatch.setattr(recorder, "STEPS", 0)
    assert recorded("O2", 1, False, 6).memory == few.memory


@pytest.mark.usefixtures("compiler_forgets")
@pytest.mark.filterwarnings("ignore:.*Dynamo does not know how to trace:UserWarning")
def test_compiled_models_train_on_and_their_loaded_batches_are_known():
    """The compiler leaves the models' hooks out, or runs them between two graphs."""
    runs = [
        recorded(level, 1, True, around=lambda model: torch.compile(model, backend="eager")) for level in (None, "O0")
    ]
    assert runs[0].loaded == runs[1].loaded and len(set(runs[0].loaded)) == 4
    assert [each[2] for each in runs[0].loss] == [each[2] for each in runs[1].loss]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_a_script_may_compile_its_model_after_it_has_made_the_optimizer():
    assert len(recorded(None, 1, False, around=lambda model: torch.jit.script(model)).step_seconds) == 4


def test_strides_do_not_matter_but_shapes_and_values_do():
    def checksum(tensor):
        found = recorder.DataFingerprints()
        found.called(((tensor,), {}))
        return found.end_step()[1]

    tensor = torch.arange(20000.0).reshape(100, 200)
    assert checksum(tensor) == checksum(tensor.t().contiguous().t()) != checksum(tensor.reshape(200, 100))
    assert checksum(tensor) != checksum(tensor + 1) != checksum((tensor + 1).double())
    transformed = recorder.DataFingerprints()
    torch.func.vmap(lambda row: transformed.called(((row,), {})) or row)(tensor)
    assert transformed.end_step() == [0, 0]
    assert checksum(tensor.requires_grad_()) == checksum(torch.ones(2, device="meta")) == 0
