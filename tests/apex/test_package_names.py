"""What ``apex/__init__.py`` of the last Apex with amp has itself."""

import logging
import warnings

import pytest
import torch


def test_the_names_are_in_the_package(alias):
    from apex import DeprecatedFeatureWarning, RankInfoFormatter, check_cudnn_version_and_warn, deprecated_warning

    assert issubclass(DeprecatedFeatureWarning, FutureWarning) and issubclass(RankInfoFormatter, logging.Formatter)
    assert check_cudnn_version_and_warn is alias.check_cudnn_version_and_warn
    assert {"DeprecatedFeatureWarning", "deprecated_warning"} <= set(dir(alias))
    warnings.filterwarnings("ignore", category=DeprecatedFeatureWarning)
    deprecated_warning("is ignored")


def test_a_deprecated_warning_warns(alias):
    with pytest.warns(alias.DeprecatedFeatureWarning, match="will go"):
        alias.deprecated_warning("it will go")


def test_amp_itself_does_not_warn(alias):
    model = torch.nn.Linear(1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alias.amp.initialize(model, torch.optim.SGD(model.parameters(), 1.0), verbosity=0)


@pytest.mark.parametrize("version, enough", [(None, False), (8400, False), (8500, True), (8600, True)])
def test_the_version_of_cudnn_is_checked(alias, monkeypatch, version, enough):
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: version is not None)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert alias.check_cudnn_version_and_warn("--bnp", 8500) is enough
    assert [("--bnp" in str(each.message)) for each in caught] == [True] * (not enough)


def test_log_records_have_the_rank(alias):
    record = logging.LogRecord("apex", logging.INFO, "file", 1, "text", (), None)
    assert alias.RankInfoFormatter("%(rank_info)s %(message)s").format(record) == "(0, 0, 0, 0) text"
