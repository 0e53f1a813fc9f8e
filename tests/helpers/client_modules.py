"""Import a client library, or skip its tests with the reason: ``imported``, ``imported_with_apex``.

Warnings during the import of a client are ignored; in tests all other warnings are errors. In the CI legs that
install the client, an import that fails is a failure and not a skip: ``AMPCOMPAT_CLIENT`` names their clients. There,
the tests of other legs are skipped, since what they need is installed in part or in another version.
"""

import importlib
import os
import warnings

import pytest

from ampcompat.apex import install


def imported(name, leg):
    """Return the module ``name`` of a client; skip the calling test module where it cannot be imported.

    Args:
        name: dotted, such as "mmcv.runner": a folder of tests may have the name of the package alone.
        leg: the leg of ``.ci/run`` that installs the client.
    """
    check_leg(name, leg)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            if leg in _legs():
                raise
            reason = f"{name} is not here ({error}); .ci/run {leg} installs it"
            return pytest.skip(reason, allow_module_level=True)


def check_leg(name, leg):
    """Skip the calling test, or its module, in a leg that installs other clients."""
    if _legs() and leg not in _legs():
        pytest.skip(f"{name} is tested by .ci/run {leg}", allow_module_level=True)


def _legs():
    return list(filter(None, os.environ.get("AMPCOMPAT_CLIENT", "").split(",")))


def imported_with_apex(name, leg):
    """Do so for a client that looks for ``apex`` when it is imported; it keeps what it found, others find none."""
    install.install()
    try:
        return imported(name, leg)
    finally:
        install.uninstall()
