#!/usr/bin/env bash
# The leg docs of .ci/run: the documentation site; a warning (a broken link, say) is an error. --quiet would hide warnings
# from --strict.
set -euo pipefail
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
NO_MKDOCS_2_WARNING=1 mkdocs build --strict --site-dir "$site"
echo "built $(find "$site" -name '*.html' | wc -l) pages"
