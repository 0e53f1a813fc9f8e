"""Levels forced on the Trainer of transformers 5."""

import pytest
from helpers import client_modules, forced_trainings

transformers = client_modules.imported("transformers", "new-trainers")


@pytest.fixture(autouse=True, scope="module")
def first_model(tmp_path_factory):
    """Make one model first: transformers adds a method to ``torch.nn.Module`` then."""
    forced_trainings.fit_by_transformers(transformers, tmp_path_factory.mktemp("first"))


@pytest.mark.parametrize("level", forced_trainings.LEVELS)
def test_the_trainer_trains_at_a_forced_level_as_unchanged(level, tmp_path, monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_VERBOSITY", "0")
    forced_trainings.assert_trains_as_unchanged(
        lambda: forced_trainings.fit_by_transformers(transformers, tmp_path), level
    )
