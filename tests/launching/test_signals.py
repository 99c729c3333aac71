"""Ctrl-C and SIGTERM at any moment end a launch and a search with exit code 130, and with them their runs."""
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.helpers import ROOT, executed, executing, started, wait_for
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
# Imports the scripts once, then starts one process after the other that launches or searches, and sends each a signal
# after some seconds. argv: a folder, which script, its arguments, [[seconds, signal], ...]; prints the exit codes.
DRIVER = '''
import importlib, json, os, pathlib, sys, time
from launching import process
from utilities import stopping
folder, name, arguments, signals = pathlib.Path(sys.argv[1]), sys.argv[2], *map(json.loads, sys.argv[3:])
process.MAIN = folder / 'main.py'
script = importlib.import_module(name)
for number, (seconds, signal_number) in enumerate(signals):
    ready, go = os.pipe()
    child = os.fork()
    if not child:
        stopping.install()
        os.write(go, b'x')
        sys.stdout = sys.stderr = open(folder / f'printed_{number}', 'w')
        code = script.main([argument.replace('NUMBER', str(number)) for argument in arguments])
        sys.stdout.flush()
        os._exit(code)
    os.read(ready, 1)
    time.sleep(seconds)
    os.kill(child, signal_number)
    for _ in range(3000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.02)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status) if ended else 'lost', flush=True)
'''


def drive(folder, name, arguments, seconds):
    """The exit codes of the script, stopped after so many seconds, by SIGINT and SIGTERM in turn."""
    (folder / 'main.py').write_text(STUB.replace('HANDLER', STOPS))
    signals = [[one, [signal.SIGINT, signal.SIGTERM][i % 2]] for i, one in enumerate(seconds)]
    code, out, error = executed(folder, DRIVER, folder, name, json.dumps(arguments), json.dumps(signals))
    assert code == 0, error
    return out.split()


@pytest.mark.parametrize('arguments', [['{script}', '--workers', '2'], ['--line', '{line}']], ids=['script', 'line'])
def test_a_launch_is_stopped_at_any_moment(arguments, script, tmp_path):
    runs = script([], [], [])
    line = Path(runs).read_text().splitlines()[0].removeprefix('python main.py ')
    arguments = [argument.replace('{script}', runs).replace('{line}', line) for argument in arguments]
    generator = random.Random(0)
    moments = [generator.uniform(0, 0.8) for _ in range(4)]
    assert drive(tmp_path, 'Launch_Runs', arguments, moments) == ['130'] * len(moments)
    assert not list(tmp_path.glob('running_*'))
    logs = list((tmp_path / 'runs' / 'folder').glob('*.log'))
    assert logs and all(log.read_text().splitlines()[-1] == 'Launch_Runs.py: exit code 130' for log in logs)


def test_a_search_is_stopped_at_any_moment(flags, tmp_path):
    arguments = [flags[0], f'{flags[1]}_NUMBER', *flags[2:], *TUNE, '--n_trials', '3', '--workers', '2']
    generator = random.Random(1)
    moments = [generator.uniform(0, 1.5) for _ in range(3)]
    assert drive(tmp_path, 'Hyperparameter_Search', arguments, moments) == ['130'] * len(moments)
    assert not list(tmp_path.glob('running_*'))


def test_while_runs_are_stopped_a_second_ctrl_c_ends_at_once(script, tmp_path):
    (tmp_path / 'main.py').write_text(STUB.replace('HANDLER', 'signal.SIG_IGN'))
    start = ('import sys; from pathlib import Path; import Launch_Runs; from launching import process; '
             'from utilities import stopping; process.MAIN = Path(sys.argv[1]); '
             'stopping.install(); '
             'sys.exit(Launch_Runs.main(sys.argv[2:]))')
    launcher, _, errors = executing(tmp_path, start, tmp_path / 'main.py', script([], []))
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
