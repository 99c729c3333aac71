"""What the command lines import: the packages that take seconds only where they are used."""
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

import configuration
from launching import plan, script
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


@pytest.mark.parametrize('script', [
    'main.py', 'Launch_Runs.py', 'Hyperparameter_Search.py', 'Result_Evaluations.py', 'Evaluate_Ensemble.py',
    'Evaluate_Network.py', 'Retrieve_Images.py'])
@pytest.mark.parametrize('made, way', [(False, 'make .venv/installed makes'), (True, 'source .venv/bin/activate')])
def test_outside_the_environment_a_line_says_which_command_makes_it(script, made, way, tmp_path):
    for name in (script, 'utilities/__init__.py', 'utilities/stopping.py'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    if made:
        (tmp_path / '.venv').mkdir()
        (tmp_path / '.venv' / 'installed').touch()
    done = subprocess.run([sys.executable, '-S', script, '--help'], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout and done.stderr.count('\n') == 1
    assert done.stderr.startswith(f'{script}: error: torch is not installed for ') and way in done.stderr
    assert ('make .venv' in done.stderr) != made


def test_an_environment_without_pip_is_made_again(tmp_path):
    """Debian's Python without python3-venv makes .venv/bin/python, and then fails."""
    shutil.copy(ROOT / 'Makefile', tmp_path)
    (tmp_path / 'requirements.txt').touch()
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\n[ "$1" = -m ] || exit 0\n'
                      'echo made\nmkdir -p .venv/bin\ntouch .venv/bin/python\nexit 1\n')
    python.chmod(0o755)
    for _ in range(2):
        done = subprocess.run(['make', 'PYTHON=./python', '.venv/installed'], cwd=tmp_path, capture_output=True,
                              text=True)
        assert done.returncode == 2 and 'made' in done.stdout.splitlines()


def commands_of(target):
    """The words of the commands that `make target` would execute."""
    listed = subprocess.run(['make', '-n', target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [shlex.split(line) for line in listed.replace('\\\n', '').splitlines()]


def test_the_commands_of_make_demo_and_make_regress_are_valid(monkeypatch):
    command, = (words for words in commands_of('demo') if 'main.py' in words)
    opt = configuration.parse(command[command.index('main.py') + 1:])
    assert (opt.dataset, opt.group, opt.n_epochs) == ('glyphs', 'demo', 8)
    command, = (words for words in commands_of('regress') if 'Launch_Runs.py' in words)
    monkeypatch.chdir(ROOT)
    runs = plan.runs_of_script(command[command.index('Launch_Runs.py') + 1], more=command[command.index('--') + 1:])
    assert len(runs) == len(script.commands('run_scripts/Regress_Runs.sh'))
    assert {str(run.parent) for run in runs} == {'Training_Results/regress/glyphs'}
