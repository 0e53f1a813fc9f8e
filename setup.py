"""``pip install .`` and ``python setup.py``; all metadata but the license is in pyproject.toml.

A license expression in pyproject.toml needs setuptools 77, and Python 3.7 has no setuptools after 68. The table that 68
takes instead is deprecated.
"""

from setuptools import setup

setup(license="BSD-3-Clause")
