"""What the command lines import: the packages that take seconds only where they are used."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

from utilities import run_folder

ROOT = Path(__file__).parents[1]
SLOW = {'torchvision', 'sklearn', 'faiss', 'wandb', 'pandas', 'matplotlib', 'scipy', 'timm', 'optuna', 'tensorboard',
        'torch._dynamo'}
# runs a script to its end, and prints what it has imported
SCRIPT = '''
import contextlib, io, json, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, '.')
with contextlib.redirect_stdout(io.StringIO()):
    try:
        runpy.run_path(sys.argv[0], run_name='__main__')
    except SystemExit as end:
        code = end.code
print(json.dumps([code, sorted(sys.modules)]))
'''


@pytest.fixture
def runs(tmp_path):
    """A folder with the records of a finished run."""
    folder = tmp_path / 'cub200' / 'A_s0'
    folder.mkdir(parents=True)
    flags = {'dataset': 'cub200', 'group': 'A', 'seed': 0, 'n_epochs': 0}
    run_folder.write_yaml(folder / 'config.yaml', {'flags': flags, 'split_hash': 'x', 'run_id': 'x'})
    (folder / 'splits.yaml').write_text('hash: x\n')
    (folder / 'log.csv').write_text('epoch,test_e_recall@1,test_nmi\n0,0.5,0.5\n')
    last = {'epoch': 0, 'test_e_recall@1': 0.5, 'test_nmi': 0.5}
    (folder / 'summary.json').write_text(json.dumps({'finished': True, 'last_epoch': last}))
    return tmp_path


@pytest.mark.parametrize('arguments, needed', [
    (['main.py', '--help'], {'torch'}),
    (['main.py', '--los', 'triplet'], {'torch'}),
    (['Launch_Runs.py', '--help'], set()),
    (['Launch_Runs.py', 'Omniglot_Runs.sh', '--status'], {'torch'}),
    (['Launch_Runs.py', 'Omniglot_Runs.sh', '--dry_run'], {'torch'}),
    (['Hyperparameter_Search.py', '--help'], set()),
    (['Result_Evaluations.py', '--help'], set()),
    (['Result_Evaluations.py', '--runs', '{runs}'], {'torch', 'pandas'}),
    (['Evaluate_Ensemble.py', '--help'], set()),
    (['Retrieve_Images.py', 'query', '--help'], set()),
], ids=lambda value: ' '.join(value) if isinstance(value, list) else '')
def test_only_what_is_needed_is_imported(arguments, needed, runs):
    arguments = [argument.replace('{runs}', str(runs)) for argument in arguments]
    done = subprocess.run([sys.executable, '-c', SCRIPT, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code, imported = json.loads(done.stdout.splitlines()[-1])
    assert not code or arguments[1] == '--los' and code == 2
    assert (SLOW | {'torch'}) & set(imported) == needed
