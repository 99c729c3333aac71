"""launching/fork_server.py: a forked run is what `python main.py ...` would be, without the imports."""
import fcntl
import json
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from launching import fork_server, plan, pool, process
from tests.helpers import folder_of, rows_of, wait_for

pytestmark = pytest.mark.skipif(sys.platform != 'linux', reason='a fork server needs Linux')
# takes the place of main.py; it does not import torch itself
STUB = '''
import atexit, json, os, pathlib, sys, threading, time
import numpy as np
torch = sys.modules.get('torch')
print(json.dumps({
    'arguments': sys.argv[1:], 'main': sys.argv[0] == __file__ and __name__,
    'session': os.getsid(0) == os.getpid(), 'folder': os.getcwd(), 'key': os.environ.get('KEY'),
    'path': sys.path[0], 'input': os.path.samestat(os.fstat(0), os.stat(os.devnull)), 'random': np.random.rand(),
    'outputs': [os.path.samestat(os.fstat(stream), os.stat(os.environ['LOG'])) for stream in (1, 2)],
    'threads': len(os.listdir('/proc/self/task')), 'of_torch': torch and torch.get_num_threads(),
    'cuda': torch and torch.cuda.is_initialized()}), flush=True)
if 'raise' in sys.argv:
    raise RuntimeError('on purpose')
if 'text' in sys.argv:
    sys.exit('a text')
atexit.register(print, 'at the end')
threading.Thread(target=lambda: [time.sleep(0.3), print('of a thread')]).start()
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

    def begin(*arguments, name='a', forked=True, **environment):
        run = plan.Planned(list(arguments), {}, tmp_path, name, environment | {'LOG': f'{tmp_path}/{name}.log'})
        return run, process.start(run, forked=forked)
    return begin


def told(run):
    """What the stub has printed to the run's log."""
    return json.loads(next(line for line in reversed(process.lines_of_log(run)) if line.startswith('{')))


def test_a_forked_run_is_as_one_that_was_started(start):
    found, n_threads = {}, 1 if torch.get_num_threads() > 1 else 2
    for name, forked in (('forked', True), ('started', False), ('forked again', True)):
        run, begun = start('--group', name, '3', name=name, forked=forked, KEY='secret', OMP_NUM_THREADS=str(n_threads))
        assert begun.wait(timeout=60) == 3 == begun.returncode == begun.poll()
        assert isinstance(begun, fork_server.Run) == forked
        found[name] = told(run)
        lines = process.lines_of_log(run)
        assert 'secret' not in lines[1] and 'main.py --group' in lines[1]
        assert lines[-2:] == ['of a thread', 'at the end']
    assert found['forked'].pop('random') != found['forked again'].pop('random')
    assert found['forked'].pop('of_torch') == n_threads and found['started'].pop('of_torch') is None
    assert found['forked'].pop('cuda') is False
    differing = {'arguments', 'random', 'cuda', 'threads'}
    assert {name: value for name, value in found['started'].items() if name not in differing} == {
        name: value for name, value in found['forked'].items() if name not in differing}
    assert found['forked']['arguments'] == ['--group', 'forked', '3']
    assert found['forked']['threads'] <= n_threads
    assert found['forked']['session'] and found['forked']['input'] and found['forked']['key'] == 'secret'
    assert all(found['forked']['outputs'])


def test_a_traceback_and_a_signal_are_told_by_the_exit_code(start):
    run, begun = start('raise')
    assert begun.wait(timeout=60) == 1 and 'RuntimeError: on purpose' in process.last_lines(run)
    run, begun = start('text')
    assert begun.wait(timeout=60) == 1 and process.last_lines(run).endswith('a text')
    for number in (signal.SIGTERM, signal.SIGKILL):
        run, begun = start('wait', '0')
        wait_for(lambda: begun.poll() is not None or '"arguments"' in process.last_lines(run))     # noqa: B023
        with pytest.raises(subprocess.TimeoutExpired):
            begun.wait(timeout=0.1)
        {signal.SIGTERM: begun.terminate, signal.SIGKILL: begun.kill}[number]()
        assert begun.wait(timeout=60) == -number and not process.is_running(run)
        begun.terminate()                                         # of a process that has ended: nothing


def test_the_lock_of_the_log_is_the_runs_alone_and_outlives_the_server(start, tmp_path):
    run, begun = start('wait', '0')
    assert process.is_running(run)
    with pytest.raises(process.Busy):
        process.start(run)
    several = pool.Pool([], [])
    several.running[begun] = run, []
    os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    wait_for(lambda: begun.poll() == process.LOST)
    assert list(several.collect()) == [] and several.elsewhere == [run] and process.is_running(run)
    (tmp_path / 'pipe').write_text('x')
    wait_for(lambda: not process.is_running(run))
    with open(run.log) as log:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    another, forked = start('0', name='c')                        # by a new server
    assert isinstance(forked, fork_server.Run) and forked.wait(timeout=60) == 0


def test_without_a_server_a_run_is_a_new_program(start, monkeypatch):
    def refuse(*_):
        raise OSError
    monkeypatch.setattr(fork_server.Run, '_Popen', staticmethod(refuse))
    run, begun = start('0')
    assert isinstance(begun, subprocess.Popen) and begun.wait(timeout=60) == 0


def test_the_random_numbers_of_runs_do_not_depend_on_the_server(quick, tmp_path, run):
    """A run's records are those of main.py called here, to the last bit; also with data workers."""
    planned = plan.planned_run([*quick, '--n_epochs', '1', '--kernels', '1'])
    assert process.start(planned).wait(timeout=120) == 0
    assert run(*quick, '--n_epochs', '1', '--group', 'here') == 0
    assert rows_of(folder_of(tmp_path)) == rows_of(folder_of(tmp_path, 'here_s1'))
    assert np.isfinite(float(rows_of(folder_of(tmp_path))[-1]['train_loss']))
