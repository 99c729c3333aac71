#!/usr/bin/env bash
# Runs the tests that need an NVIDIA GPU, with at most two processes on it; for `make test-gpu`. Each test is named when
# it has ended. One that takes over a minute is ended with its process, and fails; after four minutes, all are.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
reason=$("$python" -c 'import torch; print("" if torch.cuda.is_available() else f"PyTorch {torch.__version__} finds none")')
[ -z "$reason" ] || { echo "make test-gpu: skipped: it needs an NVIDIA GPU, and $reason"; exit; }
export OMP_NUM_THREADS=4
exec timeout --foreground --signal=INT --kill-after=5 235 "$python" -m pytest -v -rs -n 2 -m gpu \
    -o faulthandler_timeout=60 -o faulthandler_exit_on_timeout=true "$@" $(grep -rl --include='test_*.py' 'mark\.gpu' tests)
