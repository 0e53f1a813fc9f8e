"""The alias ``apex`` for a test."""

import pytest

from ampcompat.apex import install


@pytest.fixture
def alias():
    """Have ampcompat's ``apex`` imported by that name; return the package."""
    install.install()
    import apex

    yield apex
    install.uninstall()
