#!/bin/sh
# Make a virtual environment at $1, on a Debian or Ubuntu machine also where python3-venv is missing yet.
set -eu
target=$1
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "ckpt-exporter needs Python 3.10 or newer; $python is $("$python" --version 2>&1). Set PYTHON=..." >&2
    exit 1
}
[ -x "$target/bin/pip" ] && exit 0

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    as_root=$([ "$(id -u)" = 0 ] || echo sudo)
    command -v apt-get >/dev/null || { echo "install Python's venv module first" >&2; exit 1; }
    echo "installing $version (Python's venv module is missing)"
    $as_root apt-get update -qq
    $as_root apt-get install -y -qq "$version" >/dev/null || $as_root apt-get install -y -qq python3-venv >/dev/null
fi
rm -rf "$target"
"$python" -m venv "$target"
