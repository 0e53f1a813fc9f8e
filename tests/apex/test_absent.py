"""Parts of Apex that are not provided: an ImportError that names a replacement, and None from ``find_spec``."""

import importlib
import importlib.util
import sys

import pytest

from ampcompat.apex import install

ABSENT = [
    ("apex.normalization.no_such_module", "ampcompat does not provide"),
    ("apex.contrib.fmha", "scaled_dot_product_attention"),
    ("apex.transformer.tensor_parallel", "Megatron-LM"),
    ("apex.amp.no_such_module", "ampcompat does not provide"),
]

pytestmark = pytest.mark.usefixtures("alias")


@pytest.mark.parametrize("name, instead", ABSENT, ids=[name for name, _ in ABSENT])
def test_importing_it_raises_an_error_that_names_a_replacement(name, instead):
    for statement in ("import " + name, "from " + name + " import Something"):
        with pytest.raises(ImportError, match=instead) as caught:
            exec(statement, {})
        assert name in str(caught.value)
        assert isinstance(caught.value, ModuleNotFoundError)  # so scripts that fall back on another module do
        assert type(caught.value) is not ModuleNotFoundError
    with pytest.raises(ImportError, match=instead):
        importlib.import_module(name)


def test_from_apex_import_raises_the_same_error():
    with pytest.raises(ImportError, match="Megatron-LM"):
        exec("from apex import transformer", {})


def test_as_an_attribute_it_is_absent_with_the_same_advice():
    import apex

    assert not hasattr(apex, "transformer")
    with pytest.raises(AttributeError, match="Megatron-LM"):
        apex.transformer


@pytest.mark.parametrize("name", ["apex.transformer", "apex.no_such_part"])
def test_find_spec_returns_none(name):
    assert importlib.util.find_spec(name) is None


def test_other_names_are_none_of_its_business():
    with pytest.raises(ModuleNotFoundError) as caught:
        import apexes_of_something  # noqa: F401
    assert type(caught.value) is ModuleNotFoundError


def test_the_advice_leaves_with_the_alias():
    finders = len(sys.meta_path)
    install.uninstall()
    assert len(sys.meta_path) == finders - 2  # the first and the last finder
    with pytest.raises(ModuleNotFoundError) as caught:
        import amp_C  # noqa: F401
    assert type(caught.value) is ModuleNotFoundError
