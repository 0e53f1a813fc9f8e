"""What ``apex/__init__.py`` of the last Apex with amp has itself."""

import warnings

import torch


def test_a_script_can_ignore_the_warnings_of_apex(alias):
    from apex import DeprecatedFeatureWarning

    assert issubclass(DeprecatedFeatureWarning, FutureWarning) and "DeprecatedFeatureWarning" in dir(alias)
    warnings.filterwarnings("ignore", category=DeprecatedFeatureWarning)


def test_amp_itself_does_not_warn(alias):
    model = torch.nn.Linear(1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alias.amp.initialize(model, torch.optim.SGD(model.parameters(), 1.0), verbosity=0)
