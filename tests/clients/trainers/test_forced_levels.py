"""Levels forced on the Trainer of transformers 4.57, as ``run --opt-level`` does; newer ones: ``new_trainers``."""

import pytest
from helpers import client_modules, forced_trainings

transformers = client_modules.imported_with_apex("transformers", "trainers")


@pytest.fixture(autouse=True, scope="module")
def first_model(tmp_path_factory):
    """Make one model first: transformers adds a method to ``torch.nn.Module`` then."""
    forced_trainings.fit_by_transformers(transformers, tmp_path_factory.mktemp("first"))


def test_ab_accepts_its_levels(tmp_path, monkeypatch):
    forced_trainings.assert_accepted("transformers_fit.py", tmp_path, monkeypatch, tmp_path)


@pytest.mark.parametrize("level", forced_trainings.LEVELS)
def test_the_trainer_trains_at_a_forced_level_as_unchanged(level, tmp_path, monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_VERBOSITY", "0")
    forced_trainings.assert_trains_as_unchanged(
        lambda: forced_trainings.fit_by_transformers(transformers, tmp_path), level
    )
