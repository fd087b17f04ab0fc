#!/bin/sh
# To be run by a person on a machine with NVIDIA GPUs:   sh benchmarks/on_gpu.sh
#
# NOT RUN ON A GPU YET: it was written on a machine that has none, and only rehearsed there against simulated
# GPUs (REHEARSAL=1, which needs torch and a C-free simulation, and proves nothing about a real driver).
#
# It asks the real driver library what a call costs and whether GPM counters are there, then runs a real
# training with real saves beside the daemon, and compares the daemon's bubbles with what the training itself
# noted. Needs python3, make, this repository and the right to install packages into .venv-gpu (torch).
# Takes about 10 minutes. Everything is left in on-gpu-results/; the GPUs' settings are not touched.
#
#   PYTHON         python3 to use                       TORCH_PYTHON   a python that has torch with CUDA already
#   BETWEEN        seconds of training between saves    SAVE_GB        size of one save
#   CHECKPOINTS    where to save (put the storage to be measured here)
#   REHEARSAL=1    simulated GPUs, torch on the CPU: tries this script, not a GPU
set -eu
cd "$(dirname "$0")/.."
repository=$(pwd)

PYTHON=${PYTHON:-python3}
BETWEEN=${BETWEEN:-80}
SAVE_GB=${SAVE_GB:-8}
REHEARSAL=${REHEARSAL:-}
results=$repository/on-gpu-results/$(date +%Y%m%d-%H%M%S)
checkpoints=${CHECKPOINTS:-$results/checkpoints}
backend=nvml
device=cuda
exporter_pid=

say() { printf '\n== %s\n' "$*"; }
stop() { echo "on_gpu.sh: $*" >&2; exit 1; }
clean_up() {
    if [ -n "$exporter_pid" ]; then kill "$exporter_pid" 2>/dev/null || true; wait "$exporter_pid" 2>/dev/null || true; fi
    [ -n "${CHECKPOINTS:-}" ] || rm -rf "$results/checkpoints"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

say "1. machine"
if [ -n "$REHEARSAL" ]; then
    echo "REHEARSAL: simulated GPUs; no figure below says anything about a real one"
    backend=simulated
    device=cpu
else
    [ -e /dev/nvidiactl ] || stop "no NVIDIA driver here (/dev/nvidiactl is missing); run it on a machine with a GPU"
fi
mkdir -p "$results" "$checkpoints"
make -s PYTHON="$PYTHON" .venv/ready
exporter_python=$repository/.venv/bin/python

say "2. the driver's library: cost of calls, GPM (also in library.json)"
if [ -n "$REHEARSAL" ]; then
    echo "left out in a rehearsal"
else
    "$exporter_python" -m benchmarks.on_gpu library "$results/library.json"
fi

say "3. torch"
torch_python=${TORCH_PYTHON:-}
if [ -z "$torch_python" ] && "$PYTHON" -c 'import torch' 2>/dev/null; then torch_python=$PYTHON; fi
if [ -z "$torch_python" ]; then
    PYTHON="$PYTHON" sh ./environment.sh .venv-gpu
    torch_python=$repository/.venv-gpu/bin/python
    "$torch_python" -c 'import torch' 2>/dev/null || "$torch_python" -m pip install --quiet torch numpy
fi
"$torch_python" -m benchmarks.on_gpu torch "$device" || stop "this torch can't use $device; set TORCH_PYTHON to one that can"

say "4. training with saves, watched (recording.jsonl, truth.jsonl, exporter.log)"
cat > "$results/config.yaml" <<CONFIG
directories:
  - {name: run, path: '$checkpoints'}
gpu: {backend: $backend, sample_hz: 2}
history: {path: null}
CONFIG
"$exporter_python" -m ckpt_exporter run --config.file="$results/config.yaml" \
    --record.path="$results/recording.jsonl" --web.listen-address=127.0.0.1:10047 \
    2> "$results/exporter.log" &
exporter_pid=$!
sleep 3
kill -0 "$exporter_pid" 2>/dev/null || { cat "$results/exporter.log" >&2; stop "the exporter did not start"; }
"$torch_python" -m benchmarks.on_gpu train "$checkpoints" "$results/truth.jsonl" "$device" "$BETWEEN" "$SAVE_GB"
"$exporter_python" -m benchmarks.on_gpu scrape 127.0.0.1:10047 "$exporter_pid" "$results/metrics.txt"
kill "$exporter_pid"
wait "$exporter_pid" || stop "the exporter failed; see $results/exporter.log"
exporter_pid=

say "5. bubbles against the training's own notes (result.json)"
"$exporter_python" -m ckpt_exporter replay "$results/recording.jsonl" --format=json > "$results/result.json"
status=0
"$exporter_python" -m benchmarks.on_gpu judge "$results/result.json" "$results/truth.jsonl" || status=$?
gzip -f "$results/recording.jsonl"

say "done: $results"
[ -z "$REHEARSAL" ] || { echo "a rehearsal: simulated GPUs stop exactly while files are written, whatever torch does"; status=0; }
exit "$status"
