#!/usr/bin/env bash
# The leg lint of .ci/run: ruff's rules and format, as pyproject.toml sets them.
set -euo pipefail
ruff check --no-cache .
ruff format --no-cache --check .
