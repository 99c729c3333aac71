"""launching/process.py: a run is a process of its own, which holds the lock of its log."""
import errno
import fcntl
import json
import os
import signal
import subprocess

import pytest

from launching import plan, process
from tests.helpers import wait_for

# takes the place of main.py
STUB = '''
import json, os, pathlib, sys
print(json.dumps({
    'arguments': sys.argv[1:], 'group': os.getpgrp() == os.getpid(),
    'session': os.getsid(0), 'folder': os.getcwd(),
    'key': os.environ.get('KEY'), 'input': os.path.samestat(os.fstat(0), os.stat(os.devnull)),
    'outputs': [os.path.samestat(os.fstat(stream), os.stat(os.environ['LOG'])) for stream in (1, 2)]}))
if 'raise' in sys.argv:
    raise RuntimeError('on purpose')
if 'wait' in sys.argv:
    os.read(os.open(pathlib.Path(__file__).with_name('pipe'), os.O_RDONLY), 1)
sys.exit(int(sys.argv[-1]))
'''


@pytest.fixture
def start(tmp_path, monkeypatch):
    """start(arguments): the run with them that the stub is, started as launchers do, and its process."""
    (tmp_path / 'main.py').write_text(STUB)
    os.mkfifo(tmp_path / 'pipe')
    monkeypatch.setattr(process, 'MAIN', tmp_path / 'main.py')

    def begin(*arguments, **environment):
        run = plan.Planned(list(arguments), {}, tmp_path, 'a', environment | {'LOG': f'{tmp_path}/a.log'})
        return run, process.start(run, [])
    return begin


def printed(run):
    """What the stub has printed to the run's log."""
    return json.loads(next(line for line in reversed(process.lines_of_log(run)) if line.startswith('{')))


def test_a_run_has_its_arguments_a_group_and_its_log(start):
    run, begun = start('--group', 'g', '3', KEY='secret')
    assert begun.wait(timeout=60) == 3 == begun.returncode
    assert printed(run) == {'arguments': ['--group', 'g', '3'], 'group': True,
                            'session': os.getsid(0), 'folder': os.getcwd(), 'key': 'secret',
                            'input': True, 'outputs': [True, True]}
    lines = process.lines_of_log(run)
    assert 'secret' not in lines[1] and 'main.py --group' in lines[1]


def test_a_traceback_and_a_signal_are_told_by_the_exit_code(start):
    run, begun = start('raise')
    assert begun.wait(timeout=60) == 1 and 'RuntimeError: on purpose' in process.last_lines(run)
    assert process.reason(run) == 'RuntimeError: on purpose'
    for number in (signal.SIGTERM, signal.SIGKILL):
        run, begun = start('wait', '0')
        wait_for(lambda: '"arguments"' in process.last_lines(run))                                 # noqa: B023
        with pytest.raises(subprocess.TimeoutExpired):
            begun.wait(timeout=0.1)
        {signal.SIGTERM: begun.terminate, signal.SIGKILL: begun.kill}[number]()
        assert begun.wait(timeout=60) == -number and not process.is_running(run)


def test_the_lock_of_the_log_is_the_runs_alone(start, tmp_path):
    run, begun = start('wait', '0')
    assert process.is_running(run)
    with pytest.raises(process.Busy):
        process.start(run, [])
    (tmp_path / 'pipe').write_text('x')
    assert begun.wait(timeout=60) == 0 and not process.is_running(run)
    with open(run.log) as log:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_on_a_file_system_without_locks_a_run_is_started_with_one_note(start, monkeypatch, capsys):
    def fails(*_):
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(fcntl, 'flock', fails)
    run, begun = start('0')
    assert begun.wait(timeout=60) == 0 and not process.is_running(run)
    assert capsys.readouterr().out.count(f'Note: {run.parent} cannot be locked (No locks available)') == 1
