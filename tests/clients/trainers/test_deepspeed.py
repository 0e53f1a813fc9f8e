"""DeepSpeed 0.16: ``"amp"`` in its configuration, with accumulation and clipping, and its checkpoints.

On a CPU it refuses to exchange float16 gradients, so levels that have them wait for a GPU. Its checkpoints hold what
the script adds for amp.
"""

import client_training
import pytest
import torch
from helpers import client_modules
from helpers.networks import differing, weights_of

import ampcompat
from ampcompat import amp

deepspeed = client_modules.imported_with_apex("deepspeed", "trainers")


pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_fields' attribute on the instance")
LEVELS = ("O0", "O1")


@pytest.fixture(autouse=True, scope="module")
def process_group(tmp_path_factory):
    """DeepSpeed wants one; of one process here."""
    store = tmp_path_factory.mktemp("store") / "file"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """Set the variables that DeepSpeed's launcher sets."""
    for name, value in (("LOCAL_RANK", "0"), ("RANK", "0"), ("WORLD_SIZE", "1"), ("DS_ACCELERATOR", "cpu")):
        monkeypatch.setenv(name, value)


def engine_of(level, turns, clip):
    """Return DeepSpeed's engine by a configuration, and the model in it."""
    model = client_training.Net()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": turns,
        "gradient_clipping": clip,
        "amp": {"enabled": True, "opt_level": level},
    }
    optimizer = client_training.optimizer_of(model)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]
    return engine, model


def train(engine):
    """Run DeepSpeed's loop over an epoch."""
    for x, y in client_training.batches():
        engine.backward(client_training.loss_of(engine(x), y))
        engine.step()


def expected(level, turns):
    """Return (weights, dtypes noted) after the same loop without DeepSpeed."""
    model = client_training.Net()
    model, optimizer = amp.initialize(model, client_training.optimizer_of(model), opt_level=level, verbosity=0)
    for turn, (x, y) in enumerate(client_training.batches() * client_training.EPOCHS, 1):
        loss = client_training.loss_of(model(x), y) / turns
        with amp.scale_loss(loss, optimizer, delay_unscale=turn % turns != 0) as scaled_loss:
            scaled_loss.backward()
        if turn % turns == 0:
            optimizer.step()
            optimizer.zero_grad()
    ended = weights_of(model), model.seen
    ampcompat.reset()
    return ended


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("level", LEVELS)
def test_deepspeed_trains_as_the_bare_loop_does(level, turns):
    weights, dtypes = expected(level, turns)
    engine, model = engine_of(level, turns, clip=0.0)
    for _ in range(client_training.EPOCHS):
        train(engine)
    assert differing(weights_of(model), weights) == [] and model.seen == dtypes


@pytest.mark.parametrize("level", LEVELS)
def test_deepspeed_resumes_from_its_own_checkpoint(level, tmp_path):
    engine, model = engine_of(level, 2, clip=0.5)
    train(engine)
    engine.save_checkpoint(str(tmp_path), client_state={"amp": amp.state_dict()})
    train(engine)
    weights, scale = weights_of(model), amp.state_dict()
    ampcompat.reset()
    engine, model = engine_of(level, 2, clip=0.5)
    _, client_state = engine.load_checkpoint(str(tmp_path))
    amp.load_state_dict(client_state["amp"])
    train(engine)
    assert differing(weights_of(model), weights) == [] and amp.state_dict() == scale
