"""Runs of several processes, started by Launch_Runs.py: on the GPUs of one machine, and on the machines of a job."""
import os
import random
import shlex

import Launch_Runs
from launching import slurm
from records import reading
from tests.helpers import ROOT, assert_same_end, folder_of, rows_of, started, wait_for
from tests.test_processes import runs

# Launch_Runs.py, whose torchrun is forked, and the processes of that as well. argv: arguments.
LAUNCH = '''
import sys
import Launch_Runs
from tests import forks
from utilities import stopping
forks.install_torchrun()
stopping.install()
sys.exit(Launch_Runs.main(sys.argv[1:]))
'''
FEW = ['--evaluation_metrics', 'e_recall@1']


def test_a_run_on_two_gpus_is_two_processes(script, tmp_path, capsys):
    """On a machine without GPUs, on the CPU."""
    few = [*FEW, '--n_epochs', '1']
    runs = script(few, [*few, '--samples_per_class', '5'])
    assert Launch_Runs.main([runs, '--gpus', '0,1', '--gpus_per_run', '2']) == 1
    out = capsys.readouterr().out
    assert 'folder/r_s0: finished' in out and 'folder/r_s1: FAILED with exit code 2' in out
    assert '--gpu 0 1' in (tmp_path / 'runs' / 'folder' / 'r_s0.log').read_text()
    assert Launch_Runs.main([runs, '--only', 'r_s0', '--workers', '1']) == 0
    assert '1 had been finished before' in capsys.readouterr().out        # the GPUs are no setting of a run


def test_the_command_of_a_machine_of_a_job(monkeypatch, tmp_path):
    for name, value in (machines(tmp_path, 'first\nsecond') | {'SLURM_JOB_ID': '70123'}).items():
        monkeypatch.setenv(name, value)
    assert slurm.torchrun(2, 4) == [
        '-m', 'torch.distributed.run', '--nnodes=2', '--nproc_per_node=4', '--rdzv_backend=c10d',
        '--rdzv_endpoint=first:20123', '--rdzv_id=70123']


def machines(tmp_path, names):
    """Makes a command scontrol that lists these machines, in the place of SLURM's; the variables that name both."""
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin' / 'scontrol').write_text(f'#!/bin/sh\n[ "$*" = "show hostnames list" ] && echo "{names}"\n')
    (tmp_path / 'bin' / 'scontrol').chmod(0o755)
    return {'PATH': f'{tmp_path / "bin"}:{os.environ["PATH"]}', 'SLURM_JOB_NODELIST': 'list'}


def test_a_job_on_two_machines_is_interrupted_and_goes_on(quick, tmp_path):
    """Both machines are this one: each is a torchrun of its own, and they meet as on a cluster."""
    variables = machines(tmp_path, 'localhost\nlocalhost')
    arguments = [*quick, *FEW, '--n_epochs', '8']

    def job():
        number = str(random.randrange(10 ** 6))                          # of the port, among other things
        command = ['--nodes=2', '--gpus_per_job=0', '--line', shlex.join(arguments)]
        files = [tmp_path / f'{number}_{node}' for node in '01']
        return [started(file, ROOT / 'tests' / 'execute.py', file, LAUNCH, *command, SLURM_NODEID=node,
                        SLURM_JOB_ID=number, **variables) for file, node in zip(files, '01', strict=True)], files

    def codes_of(job):
        return [process.wait(timeout=1200) for process in job[0]], [file.read_text() for file in job[1]]

    folder, first = folder_of(tmp_path), job()
    log = folder / 'log.csv'
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 2, 600)
    for process in first[0]:
        process.terminate()
    codes, ends = codes_of(first)
    assert codes == [130, 130] and not reading.is_finished(folder), ends
    codes, ends = codes_of(job())
    assert codes == [0, 0] and len(rows_of(folder)) == 9, ends
    codes, ends = codes_of(job())
    assert codes == [0, 0] and 'had been finished before' in ends[0]
    assert runs(tmp_path, (2, [*arguments, '--group', 'whole']))[0] == [0]
    assert_same_end(folder_of(tmp_path, 'whole_s1'), folder)
    assert [path.name for path in folder.parent.glob('quick*')] in (['quick_s1', 'quick_s1.log'],
                                                                    ['quick_s1.log', 'quick_s1'])
