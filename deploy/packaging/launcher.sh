#!/bin/sh
# Run ckpt-exporter from the directory that this file was unpacked in.
set -eu
here=$(dirname "$(readlink -f "$0")")
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "ckpt-exporter needs Python 3.11 or newer; set PYTHON to one" >&2
    exit 2
}
# The processes that it starts look there, too; user directories do not count.
export PYTHONPATH="$here/../lib" PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
exec "$python" -m ckpt_exporter "$@"
