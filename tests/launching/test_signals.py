"""Ctrl-C and SIGTERM at any moment end a launch and a search with exit code 130, and with them their runs."""
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.helpers import ROOT, executing, started, wait_for
from tests.tuning.stub import TUNE
from utilities import stopping

# takes the place of main.py; its process is noted while it runs, and it ends when it is asked to
STUB = '''
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, HANDLER)
note = pathlib.Path(__file__).with_name(f'running_{os.getpid()}')
note.touch()
for _ in range(2400):
    time.sleep(0.05)
    if note.with_name('end').exists():
        break
note.unlink()
'''
STOPS = 'lambda *_: (note.unlink(missing_ok=True), sys.exit(130))'
# argv: what takes the place of main.py, which script, its arguments; says when it can be stopped
START = '''
import importlib, sys
from pathlib import Path
from launching import process
from utilities import stopping
process.MAIN = Path(sys.argv[1])
script = importlib.import_module(sys.argv[2])
stopping.install()
print('ready', flush=True)
sys.exit(script.main(sys.argv[3:]))
'''


def start(folder, handler, *arguments):
    """The process of a script that can be stopped now, and the file of its errors. Its runs are the STUB's."""
    (folder / 'main.py').write_text(STUB.replace('HANDLER', handler))
    process, out, errors = executing(folder, START, folder / 'main.py', *arguments)
    wait_for(lambda: 'ready' in out.read_text())
    return process, errors


def assert_stopped(folder, moments, *arguments):
    """The script ends with 130 and leaves no run after so many seconds, stopped by SIGINT and SIGTERM in turn."""
    for number, seconds in enumerate(moments):
        process, errors = start(folder, STOPS, *(argument.replace('NUMBER', str(number)) for argument in arguments))
        time.sleep(seconds)
        os.kill(process.pid, [signal.SIGINT, signal.SIGTERM][number % 2])
        assert process.wait(timeout=60) == 130, errors.read_text()
        assert not list(folder.glob('running_*'))


@pytest.mark.parametrize('arguments', [['{script}', '--workers', '2'], ['--line', '{line}']], ids=['script', 'line'])
def test_a_launch_is_stopped_at_any_moment(arguments, script, tmp_path):
    runs = script([], [], [])
    line = Path(runs).read_text().splitlines()[0].removeprefix('python main.py ')
    arguments = [argument.replace('{script}', runs).replace('{line}', line) for argument in arguments]
    generator = random.Random(0)
    assert_stopped(tmp_path, [generator.uniform(0, 0.8) for _ in range(4)], 'Launch_Runs', *arguments)
    logs = list((tmp_path / 'runs' / 'folder').glob('*.log'))
    assert logs and all(log.read_text().splitlines()[-1] == 'Launch_Runs.py: exit code 130' for log in logs)


def test_a_search_is_stopped_at_any_moment(flags, tmp_path):
    arguments = [flags[0], f'{flags[1]}_NUMBER', *flags[2:], *TUNE, '--n_trials', '3', '--workers', '2']
    generator = random.Random(1)
    assert_stopped(tmp_path, [generator.uniform(0, 1.5) for _ in range(3)], 'Hyperparameter_Search', *arguments)


def test_while_runs_are_stopped_a_second_ctrl_c_ends_at_once(script, tmp_path):
    launcher, errors = start(tmp_path, 'signal.SIG_IGN', 'Launch_Runs', script([], []))
    wait_for(lambda: list(tmp_path.glob('running_*')))
    os.kill(launcher.pid, signal.SIGINT)
    wait_for(lambda: errors.read_text().count('\n') > 1)
    assert errors.read_text().startswith('\n') and 'press Ctrl-C again to end at once' in errors.read_text()
    time.sleep(stopping.BOUNCE)
    os.kill(launcher.pid, signal.SIGINT)
    assert launcher.wait(timeout=30) == -signal.SIGINT             # less than a run has to end by itself
    (tmp_path / 'end').touch()
    wait_for(lambda: not list(tmp_path.glob('running_*')))


def test_a_script_that_prints_its_commands_slowly_is_stopped(tmp_path):
    from launching.script import MARKER
    (tmp_path / 'runs.sh').write_text(f'#!/bin/bash\n{MARKER}\ntouch {tmp_path}/listing\nexec sleep 300\n')
    launcher = started(tmp_path / 'printed', ROOT / 'Launch_Runs.py', tmp_path / 'runs.sh', '--dry_run')
    wait_for((tmp_path / 'listing').exists)
    launcher.terminate()
    assert launcher.wait(timeout=60) == 130
