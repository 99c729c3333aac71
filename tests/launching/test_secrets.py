"""No key and no password in any file, log or list of arguments that a launch, a search or a submission leaves."""
import os
import pickle
import shlex
import stat
from pathlib import Path

import pytest

import Hyperparameter_Search
import Launch_Runs
from launching import plan, process, slurm
from tests.helpers import recorded_run
from tests.tuning.stub import TUNE

KEY = 'k3y' * 13 + 'x'
# notes what it got: arguments in a file that may be searched for the key, whether the key came by the environment
NOTES = '''
import os, pathlib, sys
here = pathlib.Path(__file__).parent
with open(here / 'got.txt', 'a') as file:
    print(sys.argv, os.environ.get('WANDB_API_KEY') == 'k3y' * 13 + 'x', file=file)
'''


def assert_nowhere(folder, secret, printed, but=()):
    """The secret is in no file below the folder, except those that the user wrote, and was not printed."""
    files = [file for file in folder.rglob('*') if file.is_file() and file.name not in but]
    assert files and secret not in printed.out + printed.err
    for file in files:
        assert secret.encode() not in file.read_bytes() and secret not in str(file), file


def test_a_launch_leaves_no_key(script, quick, tmp_path, monkeypatch, capsys):
    (tmp_path / 'main.py').write_text(NOTES)
    monkeypatch.setattr(process, 'MAIN', tmp_path / 'main.py')
    (tmp_path / 'key.yaml').write_text(f'wandb_key: {KEY}')
    runs = script(['--wandb_key', KEY], [f'--wandb_key={KEY}'], ['--config', str(tmp_path / 'key.yaml')])
    for arguments in ([runs, '--dry_run'], [runs], [runs, '--status'],
                      ['--line', shlex.join([*quick, '--wandb_key', KEY])]):
        assert Launch_Runs.main(arguments) == 0
    got = (tmp_path / 'got.txt').read_text().splitlines()
    assert len(got) == 4 and all(line.endswith('] True') for line in got)
    assert_nowhere(tmp_path, KEY, capsys.readouterr(), but=('runs.sh', 'key.yaml', 'main.py'))


def test_a_search_leaves_no_key_and_no_password(flags, stub, tmp_path, capsys):
    main = stub() / 'main.py'
    main.write_text(NOTES + main.read_text())
    # SQLite ignores what it does not know, and stands here for a database with a password
    storage = f'sqlite:///file:{tmp_path}/study.sqlite?uri=true&password=pa55word'
    arguments = [*flags, *TUNE, '--n_trials', '1', '--wandb_key', KEY, '--storage', storage, '--n_epochs', '1',
                 '--reproductions', '1']
    assert Hyperparameter_Search.main(arguments) == 0
    got = (tmp_path / 'got.txt').read_text().splitlines()
    assert len(got) == 4 and all(line.endswith('] True') for line in got)
    assert (tmp_path / 'study.sqlite').exists()
    printed = capsys.readouterr()
    for secret in (KEY, 'pa55word'):
        assert_nowhere(tmp_path, secret, printed, but=('main.py',))


@pytest.mark.parametrize('url', ['postgresql://u:pa55word@:x/db', 'postgresql://u:pa55word@', 'postgresql://u:/pa55word',
                                 'postgresql://u:12/pa55word@127.0.0.1:1/db', 'nodatabase://u:pa55word@h/db',
                                 'postgresql://u:p@pa55word@127.0.0.1:1/db', 'postgresql://u:pa55word@[::1/db',
                                 'postgresql://127.0.0.1:1/db?user=u&password=pa55word', 'pa55word'])
def test_a_storage_that_cannot_be_used_is_refused_without_its_password(url, flags, tmp_path, capsys):
    assert Hyperparameter_Search.main([*flags, *TUNE, '--storage', url]) == 2
    error = capsys.readouterr().err
    assert error.startswith('Hyperparameter_Search.py: error: --storage') and 'pa55word' not in error
    assert not (tmp_path / 'study').exists()


def test_a_password_with_an_at_sign_is_refused_before_a_driver_can_print_it(flags, capsys):
    assert Hyperparameter_Search.main([*flags, *TUNE, '--storage', 'postgresql://u:p@pa55word@127.0.0.1:1/db']) == 2
    assert 'in a password, write / as %2F and @ as %40' in capsys.readouterr().err


def test_a_submission_leaves_no_key_and_its_jobs_get_it_by_the_environment(script, tmp_path, monkeypatch, capsys):
    submitit = pytest.importorskip('submitit')
    monkeypatch.setattr(submitit.SlurmExecutor, 'affinity', classmethod(lambda cls: 1))
    sbatch = tmp_path / 'bin' / 'sbatch'                           # exports its environment to the jobs, as sbatch does
    sbatch.parent.mkdir()
    sbatch.write_text(f'#!/bin/sh\n[ "$WANDB_API_KEY" = "{KEY}" ] && echo yes > {tmp_path}/exported\n'
                      f'echo "$@" > {tmp_path}/arguments\necho Submitted batch job 7\n')
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv('PATH', f'{sbatch.parent}:{os.environ["PATH"]}')
    monkeypatch.chdir(tmp_path)
    key = ['--wandb_key', KEY]
    runs = script(key, key, key)
    first, second, _ = plan.runs_of_script(runs)
    recorded_run(first, finished=True)
    recorded_run(second)
    log = second.parent / second.savename / 'log.csv'
    log.write_text(log.read_text()[:-3])
    monkeypatch.setattr(slurm, 'ROOT', Path('/a folder'))
    assert Launch_Runs.main([runs, '--slurm', '--time', '1-12', '--partition', 'gpu', '--at_once', '1', '--cpus', '2',
                             '--memory', '8GB', '--gpus_per_job', '2', '--slurm_args', 'qos=long', 'account=lab']) == 0
    submitted = next((tmp_path / 'slurm_logs').glob('*submission*.sh'))
    assert {*submitted.read_text().splitlines()} > {
        "export PYTHONPATH='/a folder':$PYTHONPATH", '#SBATCH --time=2160', '#SBATCH --partition=gpu',
        '#SBATCH --array=0-1%1', '#SBATCH --cpus-per-task=2', '#SBATCH --mem=8GB', '#SBATCH --gpus-per-node=2',
        '#SBATCH --qos=long', '#SBATCH --account=lab'}
    assert (tmp_path / 'exported').exists()
    jobs = [pickle.loads(file.read_bytes()).function.command for file in (tmp_path / 'slurm_logs').glob('*.pkl')]
    assert len(jobs) == 2 and all('--line=' in ' '.join(command) for command in jobs)
    printed = capsys.readouterr()
    assert f'{log}: cut off' in printed.out and '1 of 3 runs had been finished before\n2 jobs: 7' in printed.out
    assert_nowhere(tmp_path, KEY, printed, but=('runs.sh', 'sbatch'))

    sbatch.unlink()
    assert Launch_Runs.main([runs, '--only', 'r_s0', '--slurm']) == 0
    assert capsys.readouterr().out == '1 of 1 runs had been finished before\n'
    assert Launch_Runs.main([script(key, key, []), '--slurm']) == 2
    assert '--slurm: the lines have different keys' in capsys.readouterr().err
