#!/usr/bin/env bash
# The leg docs of .ci/run: the documentation site; a broken link or a docstring that cannot be read is an error.
set -euo pipefail
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet --site-dir "$site"
echo "built $(find "$site" -name '*.html' | wc -l) pages"
