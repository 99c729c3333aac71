"""
A stub of main.py, which a search runs in its place, and what the tests of searches call.

with_stub(folder) makes the runs of searches in this process those of the stub in `folder`; processes() starts searches
with it as processes of their own.
"""
import json
import sqlite3
from collections import Counter

import optuna
from sqlalchemy import Engine, event

from launching import process
from tests import forks
from tests.helpers import csv_rows, executing

# Takes the place of main.py where only the search is tested: the score of an epoch is a function of the flags.
STUB = '''
import json, math, pathlib, sys, time, yaml
given = dict(word.removeprefix('--').split('=', 1) for word in sys.argv[1:] if '=' in word)
parent = pathlib.Path(given['save_path']) / 'folder'
flags = json.loads((parent / f'{given["group"]}_s{given.get("seed", 1)}.json').read_text())
folder = parent / f'{flags["group"]}_s{flags["seed"]}'
folder.mkdir(exist_ok=True)
margin, place = flags['loss_triplet_margin'], math.log10(flags['lr'])
with open(parent / 'started.txt', 'a') as file:
    print(folder.name, 'again' if '--resume' in sys.argv else '', file=file)
def write(name, text):
    (folder / '.new').write_text(text)
    (folder / '.new').rename(folder / name)            # as main.py does: a search may read the file at any time
write('splits.yaml', 'hash: x')
write('config.yaml', yaml.safe_dump({'flags': flags, 'split_hash': 'x', 'run_id': 'y', 'resumed': []}))
lines = (folder / 'log.csv').read_text().splitlines() if (folder / 'log.csv').exists() else ['epoch,val_map_at_r']
for epoch in range(len(lines) - 1, flags['n_epochs'] + 1):
    score = (1 - (place + 3) ** 2 / 4 - margin / 10) * (1 - math.exp(-epoch - 1)) + flags['fold'] / 100
    lines.append(f'{epoch},{math.nan if margin > 0.9 else score}')
    write('log.csv', '\\n'.join(lines) + '\\n')
    time.sleep(PACE)
    if 0.8 < margin <= 0.9:
        print('main.py: the run failed: the loss is nan\\nThe last checkpoint: here. To continue: python main.py')
        sys.exit(1)
write('summary.json', json.dumps({'finished': True, 'last_epoch': {'epoch': flags['n_epochs']}}))
'''
# Hyperparameter_Search.py with the stub, without plots, in a process of its own. argv: the stub's folder, arguments.
DRIVER = '''
import sys
from pathlib import Path
import Hyperparameter_Search
from tests import forks
from tests.tuning import stub
from tuning import folds, report, trials
from utilities import stopping
forks.install()
report.plot = lambda *_: None
stub.with_stub(Path(sys.argv[1]))
trials.HEARTBEAT, trials.GRACE, folds.POLL = 1, 3, 0.1
stopping.install()                               # as the script: else Ctrl-C could interrupt a query of the database
sys.exit(Hyperparameter_Search.main(sys.argv[2:]))
'''
TUNE = ['--tune', 'lr', '1e-5', '1e-1', 'log', '--tune', 'loss_triplet_margin', '0.01', '0.7']


@event.listens_for(Engine, 'connect')
def without_waiting_for_the_disk(connection, _):
    """A study then survives what kills its workers, as before, but not a loss of power."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute('PRAGMA synchronous=OFF')


def search_flags(patterns, folder):
    """The arguments of a search over two folds of `patterns`, with its study in `folder`."""
    return ['--study_path', str(folder / 'study'), '--dataset', 'folder', '--source_path', str(patterns),
            '--arch', 'conv4_normalize', '--not_pretrained', '--input_size', '16', '--bs', '6', '--kernels', '0',
            '--device', 'cpu', '--embed_dim', '8', '--iterations_per_epoch', '2', '--n_epochs', '2', '--n_folds', '2',
            '--loss', 'triplet', '--batch_mining', 'random']


def with_stub(folder):
    """Runs `folder`/main.py as main.py, and writes the flags of each run where the stub finds them."""
    original = process.start

    def start(run, more):
        run.parent.mkdir(parents=True, exist_ok=True)
        file = run.parent / f'{run.savename}.json'
        if not file.exists():
            file.write_text(json.dumps(run.settings))
        return original(run, more)

    process.MAIN = folder / 'main.py'
    process.start = start
    forks.SCRIPTS.add(str(process.MAIN))


def study_of(folder):
    return optuna.load_study(study_name='study', storage=f'sqlite:///{folder / "study" / "study.sqlite"}')


def table_of(folder):
    return csv_rows(folder / 'study' / 'trials.csv')


def started(folder):
    """How often each run was started."""
    return Counter(line.split()[0] for line in (folder / 'study/trials/folder/started.txt').read_text().splitlines())


def processes(folder, arguments, n=1):
    """Starts n searches with the stub as processes of their own: [(process, file of its output, of its errors)]."""
    return [executing(folder, DRIVER, folder, *arguments) for _ in range(n)]
