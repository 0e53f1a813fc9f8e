"""What ``apex/__init__.py`` of the last Apex with amp has itself."""

import logging
import warnings

import pytest
import torch

from ampcompat.apex import install


@pytest.fixture(autouse=True)
def apex():
    install.install()
    import apex

    yield apex
    install.uninstall()


def test_the_names_are_in_the_package(apex):
    from apex import DeprecatedFeatureWarning, RankInfoFormatter, check_cudnn_version_and_warn, deprecated_warning

    assert issubclass(DeprecatedFeatureWarning, FutureWarning) and issubclass(RankInfoFormatter, logging.Formatter)
    assert check_cudnn_version_and_warn is apex.check_cudnn_version_and_warn
    assert {"DeprecatedFeatureWarning", "deprecated_warning"} <= set(dir(apex))
    warnings.filterwarnings("ignore", category=DeprecatedFeatureWarning)
    deprecated_warning("is ignored")


def test_a_deprecated_warning_warns(apex):
    with pytest.warns(apex.DeprecatedFeatureWarning, match="will go"):
        apex.deprecated_warning("it will go")


def test_amp_itself_does_not_warn(apex):
    model = torch.nn.Linear(1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apex.amp.initialize(model, torch.optim.SGD(model.parameters(), 1.0), verbosity=0)


@pytest.mark.parametrize("version, enough", [(None, False), (8400, False), (8500, True), (8600, True)])
def test_the_version_of_cudnn_is_checked(apex, monkeypatch, version, enough):
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: version is not None)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert apex.check_cudnn_version_and_warn("--bnp", 8500) is enough
    assert [("--bnp" in str(each.message)) for each in caught] == [True] * (not enough)


def test_log_records_have_the_rank(apex):
    record = logging.LogRecord("apex", logging.INFO, "file", 1, "text", (), None)
    assert apex.RankInfoFormatter("%(rank_info)s %(message)s").format(record) == "(0, 0, 0, 0) text"
