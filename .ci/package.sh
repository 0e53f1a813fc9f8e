#!/usr/bin/env bash
# The leg package of .ci/run: build the sdist, build the wheel from the sdist, install the wheel, and use it in an empty
# folder, where no checkout can be imported instead.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source" "$work/empty"

tar -c --exclude ./.git --exclude ./build --exclude ./dist --exclude __pycache__ --exclude '*.egg-info' . | tar -x -C "$work/source"
python -m build --no-isolation --sdist --outdir "$work" "$work/source" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
rm -r "$work/source"
tar -xzf "$work"/ampcompat-*.tar.gz -C "$work"
sdist=$(echo "$work"/ampcompat-*/)
python -m build --no-isolation --wheel --outdir "$work" "$sdist" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cp "$sdist/.ci/smoke_test.py" "$work/empty"
(cd "$sdist" && nox --list >/dev/null) # noxfile.py reads other files of the sdist
rm -r "$sdist"

pip install --quiet "$work"/ampcompat-*.whl
cd "$work/empty"
unset PYTHONPATH
python smoke_test.py
echo "$(cd "$work" && ls ampcompat-*.whl): installed and used"
