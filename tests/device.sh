#!/usr/bin/env bash
# Builds the simulated accelerator of ../shared, once for each version of torch, and runs the tests on it; for `make
# test-device`.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath --no-symlinks "${PYTHON:-.venv/bin/python}")
source=$(realpath --canonicalize-missing ../shared/simulated_device)
[ -d "$source" ] || { echo "make test-device: skipped: there is no simulated accelerator in $source"; exit; }
for tool in g++ ninja; do
    command -v $tool > /dev/null || { echo "make test-device: skipped: $tool, which builds it, is not installed"; exit; }
done

version=$("$python" -c 'import sys, torch; print(f"{sys.implementation.cache_tag}_{torch.__version__}")')
built=${XDG_CACHE_HOME:-$HOME/.cache}/deep_metric_learning/simulated_device/$version
mkdir -p "$built"
"$python" "$source/build.py" "$built" > "$built/log" 2>&1 || { cat "$built/log"; exit 1; }
export SIM_SO=$built/sim_backend.so PYTHONPATH=$source${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1
"$python" -m pytest -q -rs -n auto -m gpu $(grep -rl --include='test_*.py' 'mark\.gpu' tests)
