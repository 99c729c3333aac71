#!/usr/bin/env bash
# Hyperparameter_Search.py on a real PostgreSQL, installed from Debian's packages and started here; for
# `make test-postgres`, as root on a machine that may be changed. Three workers with folders of their own, as on three
# machines, share a study; one of them is killed, and the study must end with the asked number of trials all the same.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath --no-symlinks "${PYTHON:-.venv/bin/python}")
[ "$(id -u)" = 0 ] || { echo 'make test-postgres: it installs and starts a service, and must be root'; exit 2; }

if ! ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql
fi
"$python" -c 'import psycopg' 2> /dev/null || "$python" -m pip install -q 'psycopg[binary]'
bin=$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb | tail -1)")

work=$(mktemp -d)
chmod 755 "$work"
mkdir "$work/database"
chown postgres "$work/database"
password=$(head -c 12 /dev/urandom | od -An -tx1 | tr -d ' \n')
echo "$password" > "$work/password"
chown postgres "$work/password"
port=54329
as_postgres() { (cd /; runuser -u postgres -- "$@"); }
as_postgres "$bin/initdb" -D "$work/database" --auth=scram-sha-256 --pwfile="$work/password" > /dev/null
as_postgres "$bin/pg_ctl" -D "$work/database" -w -l "$work/database/log" \
    -o "-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories=$work/database" start
trap 'as_postgres "$bin/pg_ctl" -D "$work/database" -m immediate stop > /dev/null' EXIT
rm "$work/password"
export PGPASSWORD=$password
storage=postgresql://postgres@127.0.0.1:$port/postgres

worker() {
    exec "$python" Hyperparameter_Search.py --study_path "$work/$1" --study_name shared --storage "$storage" --n_trials 6 \
        --tune lr 1e-4 1e-2 log --dataset glyphs --arch conv4_normalize --not_pretrained --loss multisimilarity --bs 32 \
        --samples_per_class 4 --n_folds 2 --n_epochs 2 --iterations_per_epoch 4 --embed_dim 32 --kernels 0 --device cpu
}
export OMP_NUM_THREADS=1
for name in one two three; do
    worker $name > "$work/$name.txt" 2>&1 &
    declare "$name=$!"
done
for _ in $(seq 600); do
    ls "$work"/three/trials/glyphs/*/log.csv > /dev/null 2>&1 && break
    kill -0 "$three" 2> /dev/null || { cat "$work/three.txt"; exit 1; }
    sleep 0.5
done
kill -9 "$three"
echo "+ worker three was killed in $(ls "$work/three/trials" | grep sh$)"
wait "$one" || { cat "$work/one.txt"; exit 1; }
wait "$two" || { cat "$work/two.txt"; exit 1; }
cat "$work/one.txt" "$work/two.txt"
"$python" - "$work" <<'CHECK'
import csv
import sys
from pathlib import Path

for name in ('one', 'two'):
    with open(Path(sys.argv[1]) / name / 'trials.csv') as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 == len({row['lr'] for row in rows}) == len({row['trial'] for row in rows}), rows
    assert {row['state'] for row in rows} == {'complete'}, rows
scripts = [{path.stem for path in (Path(sys.argv[1]) / name / 'trials').glob('*.sh')} for name in ('one', 'two', 'three')]
assert scripts[0] and scripts[1] and not scripts[0] & scripts[1], scripts
assert scripts[2] & (scripts[0] | scripts[1]), scripts          # the killed worker's trial was run by another
print('PostgreSQL: three workers, one of them killed: 6 trials, all finished, each once.')
CHECK
if grep -rqa "$password" "$work" --exclude-dir=database; then
    echo 'the password is in a file'
    exit 1
fi
rm -r "$work"/one "$work"/two "$work"/three
