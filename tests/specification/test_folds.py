"""A loop over folds without ``reset``: what one fold needed goes with its model and optimizer."""

import gc

import pytest
import torch
from helpers.networks import REAL, make_batch, make_network, session_of, settings_at, train_step

from ampcompat import amp
from ampcompat.observers.skipped_steps.pass_record import KEPT
from ampcompat.observers.skipped_steps.skip_limit import SkipLimit

FOLDS = 5


def train_fold(setting, scheduled, diagnose, fold):
    model = make_network(setting)
    kind = torch.optim.SGD if fold % 2 else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1) if scheduled else None
    amp.initialize(model, optimizer, opt_level=setting.level, loss_scale="dynamic", init_scale=8.0, diagnose=diagnose)
    train_step(model, optimizer, make_batch(setting))
    if scheduled:
        scheduler.step()
    model.state_dict()


def objects_after(setting, scheduled, diagnose, folds):
    queued = getattr(torch.cuda, "_queued_calls", [])  # torch keeps each seed for a CUDA that it does not have
    before = len(queued)
    for fold in range(folds):
        train_fold(setting, scheduled, diagnose, fold)
    del queued[before:]
    gc.collect(), gc.collect()  # the first calls finalizers, which restore classes and leave new garbage
    return len(gc.get_objects())


def check_that_no_object_stays(setting, scheduled, diagnose):
    with session_of(setting):
        objects_after(setting, scheduled, diagnose, KEPT if diagnose else 3)  # what torch makes once, and what is kept
        counts = [objects_after(setting, scheduled, diagnose, FOLDS) for _ in range(8)]
        # What stays of each fold grows every time; what torch makes once does not. A diagnosis keeps maxima of the last
        # passes, and reads those of a few at once.
        assert min(after - before for before, after in zip(counts, counts[4:])) <= 5 * FOLDS


@pytest.mark.parametrize("setting", REAL)
def test_no_object_stays_of_a_fold_whose_model_and_optimizer_are_gone(setting):
    check_that_no_object_stays(setting, scheduled=True, diagnose=False)


@settings_at("O1", "O2")
def test_no_object_stays_of_a_fold_that_was_diagnosed(setting):
    check_that_no_object_stays(setting, scheduled=False, diagnose=True)


@settings_at("O1", "O2")
def test_no_object_stays_of_many_folds_between_two_garbage_collections(setting, session):
    """What a later ``initialize`` had to remove would stay for as long as the collector does not run."""
    counts = []
    for _ in range(3):
        train_fold(setting, scheduled=False, diagnose=False, fold=0)
        gc.collect(), gc.collect()
        counts.append(len([each for each in gc.get_objects() if isinstance(each, SkipLimit)]))
        for fold in range(FOLDS):
            train_fold(setting, scheduled=False, diagnose=False, fold=fold)
    assert counts[0] == counts[-1]
