"""What the command lines import: the packages that take seconds only where they are used."""
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from records import run_folder

ROOT = Path(__file__).parents[1]
SLOW = {'torchvision', 'sklearn', 'faiss', 'wandb', 'pandas', 'matplotlib', 'scipy', 'timm', 'optuna', 'tensorboard',
        'torch._dynamo'}
# Runs scripts to their ends, each in a fork of this process, and prints what each has imported. argv: JSON lists of the
# arguments of scripts that need no torch, and of others; the latter run in forks that have imported it, where it counts
# if it is imported again.
SCRIPT = '''
import builtins, contextlib, io, json, os, runpy, sys
without_torch, with_torch = map(json.loads, sys.argv[1:])
sys.path.insert(0, '.')
plain, named = builtins.__import__, set()

def noting(name, *others, **more):
    named.add(name)
    return plain(name, *others, **more)

def forked(arguments):
    if not os.fork():
        sys.argv, builtins.__import__, code = arguments, noting, None
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                runpy.run_path(sys.argv[0], run_name='__main__')
            except SystemExit as end:
                code = end.code
        print(json.dumps([arguments, code, sorted({*sys.modules} - {'torch'} | named & {'torch'})]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, arguments

for arguments in without_torch:
    forked(arguments)
import torch
for arguments in with_torch:
    forked(arguments)
'''
CASES = [
    (['main.py', '--help'], {'torch'}),
    (['Launch_Runs.py', '--help'], set()),
    (['Launch_Runs.py', 'run_scripts/Omniglot_Runs.sh', '--status'], {'torch'}),
    (['Hyperparameter_Search.py', '--help'], set()),
    (['Result_Evaluations.py', '--help'], set()),
    (['Result_Evaluations.py', '--runs', '{runs}'], {'torch', 'pandas'}),
    (['Evaluate_Ensemble.py', '--help'], set()),
    (['Retrieve_Images.py', 'query', '--help'], set()),
]


@pytest.fixture(scope='module')
def imports(tmp_path_factory):
    """imports(arguments): the exit code of a script with these arguments, and what it has imported."""
    folder = tmp_path_factory.mktemp('runs')
    write_run(folder / 'cub200' / 'A_s0')

    def filled(arguments):
        return [argument.replace('{runs}', str(folder)) for argument in arguments]

    lists = [[filled(arguments) for arguments, needed in CASES if ('torch' in needed) == of_torch]
             for of_torch in (False, True)]
    done = subprocess.run([sys.executable, '-c', SCRIPT, *map(json.dumps, lists)], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    found = {tuple(arguments): result for arguments, *result in map(json.loads, done.stdout.splitlines())}
    return lambda arguments: found[tuple(filled(arguments))]


def write_run(folder):
    """The records of a finished run."""
    folder.mkdir(parents=True)
    flags = {'dataset': 'cub200', 'group': 'A', 'seed': 0, 'n_epochs': 0}
    run_folder.write_yaml(folder / 'config.yaml', {'flags': flags, 'split_hash': 'x', 'run_id': 'x', 'resumed': []})
    (folder / 'splits.yaml').write_text('hash: x\n')
    (folder / 'log.csv').write_text('epoch,test_e_recall@1,test_nmi\n0,0.5,0.5\n')
    last = {'epoch': 0, 'test_e_recall@1': 0.5, 'test_nmi': 0.5}
    (folder / 'summary.json').write_text(json.dumps({'finished': True, 'last_epoch': last}))


@pytest.mark.parametrize('arguments, needed', CASES,
                         ids=lambda value: ' '.join(value) if isinstance(value, list) else '')
def test_only_what_is_needed_is_imported(arguments, needed, imports):
    code, imported = imports(arguments)
    assert not code and (SLOW | {'torch'}) & set(imported) == needed


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_packages_are_imported_ends_the_program_with_a_line(number, tmp_path):
    """tqdm, the first of the packages, takes a minute here."""
    (tmp_path / 'tqdm.py').write_text('import os, time\nos.write(1, b"importing")\ntime.sleep(60)\n')
    process = subprocess.Popen([sys.executable, 'main.py'], cwd=ROOT, env=os.environ | {'PYTHONPATH': str(tmp_path)},
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(9)
    process.send_signal(number)
    assert process.communicate(timeout=30) == (b'', b'\nStopped while the program was starting.\n')
    assert process.returncode == 130


@pytest.mark.parametrize('made, way', [(False, 'make .venv/installed makes'), (True, 'source .venv/bin/activate')])
def test_outside_the_environment_a_line_says_which_command_makes_it(made, way, tmp_path):
    for name in ('main.py', 'utilities/__init__.py', 'utilities/stopping.py'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    if made:
        (tmp_path / '.venv').mkdir()
        (tmp_path / '.venv' / 'installed').touch()
    done = subprocess.run([sys.executable, '-S', 'main.py', '--help'], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout and done.stderr.count('\n') == 1
    assert done.stderr.startswith('main.py: error: torch is not installed for ') and way in done.stderr
    assert ('make .venv' in done.stderr) != made
