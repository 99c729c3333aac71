"""The flags of Launch_Runs.py: what is refused in a sentence."""
import pytest

import Launch_Runs


@pytest.mark.parametrize('arguments, sentence', [
    ([], 'give a script of runs'), (['nowhere.sh'], 'nowhere.sh: not a script of runs (No such file or directory)'),
    (['{script}', '--only', 'zzz'], '--only zzz: none of the 2 runs'),
    (['{script}', '--gpus', 'a'], '--gpus a: expected indices'),
    (['{script}', '--gpus', '0', '--workers', '2'], 'give one of them'),
    (['{script}', '--slurm', '--slurm_args', 'x'], '--slurm_args x: expected NAME=VALUE'),
])
def test_flags_that_cannot_be(arguments, sentence, script, capsys, monkeypatch, tmp_path):
    if '--slurm' in arguments:
        submitit = pytest.importorskip('submitit')
        monkeypatch.setattr(submitit.SlurmExecutor, 'affinity', classmethod(lambda cls: 1))
        monkeypatch.chdir(tmp_path)
    runs = script([], [])
    assert Launch_Runs.main([argument.replace('{script}', runs) for argument in arguments]) == 2
    assert sentence in capsys.readouterr().err
