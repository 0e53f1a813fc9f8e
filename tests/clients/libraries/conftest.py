"""Print which releases are tested."""

import importlib.metadata

NAMES = "torch torchao torchvision torchmetrics pytorch-ignite".split()


def pytest_report_header():
    """Return the versions of the libraries, or that one is absent."""
    found = []
    for name in NAMES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return ", ".join(found)
