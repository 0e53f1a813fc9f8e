"""A torch in which no first difference can be found is refused, and the error says which torch is needed."""

import pytest

from ampcompat.errors import AmpError
from ampcompat.support.torch_compat import features
from ampcompat.tools.first_difference import observed_step


def test_torch_2_0_and_older_are_refused(monkeypatch):
    for version, is_new_enough in (("2.0.1+cu117", False), ("2.1.2", True)):
        monkeypatch.setattr(features, "version", lambda version=version: version)
        assert observed_step.is_supported() <= is_new_enough
    monkeypatch.setattr(features, "version", lambda: "2.0.1")
    with pytest.raises(AmpError, match="needs torch 2.1 or newer; this is 2.0.1"):
        observed_step.ObservedStep({"role": "reference"})
