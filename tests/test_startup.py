"""What the command lines import: the packages that take seconds only where they are used."""
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.helpers import ROOT

SLOW = {'torchvision', 'sklearn', 'faiss', 'wandb', 'pandas', 'matplotlib', 'scipy', 'timm', 'optuna', 'tensorboard',
        'torch', 'torch._dynamo'}


@pytest.mark.parametrize('script, needed', [
    ('main.py', {'torch'}), ('Launch_Runs.py', set()), ('Hyperparameter_Search.py', set()),
    ('Result_Evaluations.py', set()), ('Evaluate_Ensemble.py', set()), ('Retrieve_Images.py query', set())])
def test_the_help_imports_only_what_it_needs(script, needed):
    done = subprocess.run([sys.executable, '-X', 'importtime', *script.split(), '--help'], cwd=ROOT,
                          capture_output=True, text=True, check=True)
    imported = re.findall(r'^import time:.*\| +([\w.]+)$', done.stderr, re.MULTILINE)
    assert SLOW & {*imported} == needed


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
