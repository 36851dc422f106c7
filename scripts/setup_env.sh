#!/usr/bin/env bash
# Makes a virtual environment with this checkout installed in it (editable), or brings one up to date.
#
#   scripts/setup_env.sh PYTHON VENV [EXTRAS]      EXTRAS as in pip: dev,parity
#
# A torch that is already in VENV stays. Otherwise TORCH is installed: a version (default below) or
# the path of a wheel. pip's own settings decide where it comes from.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
venv=$2
extras=${3:-}
torch=${TORCH:-torch==2.13.0}

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
# -qq leaves errors only.
pip_install() { "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input "$@"; }

if ! fits "$venv/bin/python"; then
  command -v "$python" >/dev/null || fail "no '$python' here: name a Python 3.11 or newer, PYTHON=..."
  fits "$python" || fail "$("$python" --version 2>&1) is too old: name 3.11 or newer, PYTHON=..."
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "'$python' has no venv module: install it (Debian and Ubuntu: python3-venv)"
  say "$("$python" --version) in $venv"
  "$python" -m venv --clear "$venv"
fi
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null

if ! "$venv/bin/python" -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then
  say "$torch (a CPU build is enough: TORCH=<wheel>; the default may be a CUDA build of some GB)"
  pip_install "$torch"
fi

target=.${extras:+[$extras]}
say "mtpconv${extras:+, with $extras}"
pip_install -c constraints.txt -e "$target"
