"""Print which releases are tested."""

try:
    from importlib import metadata
except ImportError:  # Python 3.7, which collects this file and runs none of the tests beside it
    metadata = None

NAMES = "torch torchao torchvision torchmetrics pytorch-ignite".split()


def pytest_report_header():
    """Return the versions of the libraries, or that one is absent."""
    found = []
    for name in NAMES if metadata is not None else ():
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return ", ".join(found)
