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
REPORT = ["vl-convert-python>=1.9", "jinja2"]
MYPY = ["mypy; python_version >= '3.9'"]
TEST = ["pytest", "pytest-xdist", "hypothesis", "numpy", "setuptools", "wheel"] + MYPY + EXAMPLES + REPORT
DOCS = ["mkdocs-material>=9,<10", "mkdocstrings[python]>=1,<2", "ruff"]
LINT = ["ruff==0.17.6"]
MIGRATE = ["libcst"]
EXECUTORS = ["distributed", "submitit"]
TEST += [each + '; python_version >= "3.9"' for each in ["nbclient", "ipykernel"] + EXECUTORS + MIGRATE]
ALIAS = ["site/*.py", "site/apex-0.1.dist-info/*"] + ["site/apex/" + "*/" * depth + "*.py" for depth in range(5)]

setup(
    name="ampcompat",
    version=VERSION,
    description="Apex's mixed-precision API (apex.amp) as pure Python, on any PyTorch and any device",
    long_description=read("README.md"),
    long_description_content_type="text/markdown",
    author="ampcompat contributors",
    license="BSD-3-Clause",
    keywords="pytorch apex amp mixed-precision float16 bfloat16 loss-scaling",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
    ]
    + ["Programming Language :: Python :: 3.{}".format(minor) for minor in range(7, 14)]
    + [
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["ampcompat", "ampcompat.*"]),
    # The alias is data, not a package of ours: it may be importable as `apex` only where a user installs it.
    package_data={
        "ampcompat": ["py.typed"],
        "ampcompat.abtest.report": ["page.*", "charts.json"],
        "ampcompat.apex": ALIAS,
        "ampcompat.cuda_redirect": ["site/*.py"],
        "ampcompat.tools.forecast": ["forecast.html", "heat_map.json"],
    },
    python_requires=">=3.7",
    # The oldest torch that the test suite runs on; the newest, 2.15, is no upper bound: `ampcompat info` tells.
    install_requires=["torch>=1.3.1", "packaging"],
    extras_require={
        "examples": EXAMPLES,
        "report": REPORT,
        "migrate": MIGRATE,
        "test": TEST,
        "docs": DOCS,
        "lint": LINT,
        "dev": TEST + LINT + DOCS + ["nox", "pre-commit", "build"],
    },
    entry_points={"console_scripts": ["ampcompat = ampcompat.cli:main"]},
    zip_safe=False,
)
