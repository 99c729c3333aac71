"""launching/pool.py: how many runs are trained at once."""
import fcntl

from launching import plan, process
from launching.pool import ELSEWHERE, STARTED, Pool
from tests.helpers import wait_for


def test_a_run_of_another_process_takes_a_slot_and_is_tried_again(tmp_path, monkeypatch):
    (tmp_path / 'main.py').write_text('')
    monkeypatch.setattr(process, 'MAIN', tmp_path / 'main.py')
    first, second, third = (plan.Planned([], {}, tmp_path, name) for name in 'abc')
    pool, ended = Pool([first, second, third], [[], []]), []
    with open(first.log, 'w') as log:
        fcntl.flock(log, fcntl.LOCK_EX)                           # as the process of another launcher
        assert list(pool.start()) == [(first, ELSEWHERE), (second, STARTED)] and list(pool.start()) == []
        wait_for(lambda: ended.extend(pool.collect()) or ended)
        assert ended == [(second, 0)] and list(pool.start()) == [(third, STARTED)]
    assert list(pool.start()) == [(first, STARTED)] and pool.has_runs()
    wait_for(lambda: ended.extend(pool.collect()) or len(ended) == 3)
    assert not pool.has_runs() and {run.name for run, _ in ended} == {run.name for run in (first, second, third)}
    assert process.exit_code(first) == 0
