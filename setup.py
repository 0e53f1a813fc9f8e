"""Packaging. The version has one source, ``ampcompat/__init__.py``, read as text: building needs no torch."""

import os
import re

from setuptools import find_packages, setup

HERE = os.path.dirname(os.path.abspath(__file__))


def read(*path):
    """Return the text of a file of this checkout."""
    with open(os.path.join(HERE, *path), encoding="utf-8") as file:
        return file.read()


VERSION = re.search(r'^__version__ = "(.+)"$', read("ampcompat", "__init__.py"), re.MULTILINE).group(1)
EXAMPLES = ["scikit-learn"]
REPORT = ["vl-convert-python"]
TEST = ["pytest", "pytest-xdist", "hypothesis", "numpy", "setuptools", "wheel"] + EXAMPLES + REPORT
ALIAS = ["site/*.py", "site/apex-0.1.dist-info/*"] + ["site/apex/" + "*/" * depth + "*.py" for depth in range(5)]

setup(
    name="ampcompat",
    version=VERSION,
    description="Apex's mixed-precision API (apex.amp) as pure Python, on any PyTorch and any device",
    long_description=read("README.md"),
    long_description_content_type="text/markdown",
    author="ampcompat contributors",
    license="BSD-3-Clause",
    packages=find_packages(include=["ampcompat", "ampcompat.*"]),
    # The alias is data, not a package of ours: it may be importable as `apex` only where a user installs it.
    package_data={"ampcompat.apex": ALIAS, "ampcompat.cuda_redirect": ["site/*.py"]},
    python_requires=">=3.7",
    # The oldest torch that the test suite runs on; the newest, 2.15, is no upper bound: `ampcompat info` tells.
    install_requires=["torch>=1.3.1", "packaging"],
    extras_require={
        "examples": EXAMPLES,
        "report": REPORT,
        "test": TEST,
        "dev": TEST + ["nox"],
    },
    entry_points={"console_scripts": ["ampcompat = ampcompat.cli:main"]},
    zip_safe=False,
)
