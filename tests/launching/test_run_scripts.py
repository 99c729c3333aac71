"""The run scripts of the papers: main.py takes every line, and the lines are the published runs."""
import os
import re
import shlex
import subprocess

import pytest

import Launch_Runs
import Result_Evaluations
from launching import script
from tests.helpers import ROOT

RUN_SCRIPTS = ROOT / 'run_scripts'
SCRIPTS = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob('*_Runs.sh'), *ROOT.glob('*/*_Runs.sh'),
                                                            RUN_SCRIPTS / 'First_Results.sh'])


@pytest.mark.parametrize('name', SCRIPTS)
def test_main_takes_every_line_of_the_run_scripts(name, capsys, monkeypatch):
    """Of lines that differ in the seed or the fold alone, the last one."""
    def commands(file, listed=script.commands):
        lines = {re.sub(r'(--seed |--fold |_fold)\d+', '', shlex.join(line)): line for line in listed(file)}
        return [*lines.values()]

    monkeypatch.setattr(script, 'commands', commands)
    monkeypatch.setenv('ROWS', 'none')                         # also the runs of the studies that have their rows
    assert Launch_Runs.main([str(ROOT / name), '--dry_run']) == 0
    assert 'all command lines are valid' in capsys.readouterr().out


def test_a_copy_of_the_comparison_lists_the_methods_of_its_last_lines(tmp_path):
    """As its comment and docs/result_evaluations.md say: copied within its folder."""
    (tmp_path / 'run_lines.sh').symlink_to(RUN_SCRIPTS / 'run_lines.sh')
    text = (RUN_SCRIPTS / 'Comparison_Runs.sh').read_text()
    mine = text.replace('run Triplet_Distance --loss triplet', 'run MS --loss multisimilarity')
    (tmp_path / 'mine.sh').write_text(mine)
    assert groups_of(tmp_path / 'mine.sh') == {group: list('01234') for group in ('Triplet_Random', 'MS')}


def groups_of(name):
    """{group: its seeds} of a script."""
    seeds = {}
    for arguments in script.commands(ROOT / name):
        given = {flag: arguments[index + 1] for index, flag in enumerate(arguments[:-1]) if flag.startswith('--')}
        seeds.setdefault(given['--group'], []).append(given['--seed'])
    return seeds


def test_the_runs_of_roth_et_al():
    seeds = groups_of('Revisit_Runs.sh')
    assert all(found == list('01234') for found in seeds.values())
    assert len(seeds) == 67                       # their names: reports/test_published.py
    lines = {line[line.index('--group') + 1]: shlex.join(line) for line in script.commands(ROOT / 'Revisit_Runs.sh')}
    assert '--loss_histogram_nbins 11' in lines['SOP_Histogram'] and '--n_epochs 100' in lines['SOP_Npair']
    assert '--arch resnet50_frozen ' in lines['CARS_Angular'] + ' ' and '--arch' not in lines['CARS_ArcFace']
    assert '--miner_rho_distance_cp 0.3 ' in lines['CUB_Rho_SNR'] and '_cp 0.15 ' in lines['SOP_Rho_Margin_b06']


def test_the_runs_of_direction_regularisation():
    lines = {line[line.index('--group') + 1]: line for line in script.commands(RUN_SCRIPTS / 'Direction_Runs.sh')}
    assert len(lines) == 3 * 6
    with_term, without = ([word for word in lines[f'CUB_{name}'] if name not in word] for name in ('DR_MS', 'MS'))
    assert [pair for pair in zip(with_term, without, strict=False) if pair[0] != pair[1]][0] == ('0.28', '0')


def test_the_first_results_are_lines_of_the_papers_scripts():
    lines = [shlex.join(line) for line in script.commands(RUN_SCRIPTS / 'First_Results.sh')]
    known = {shlex.join(line) for name in ('Revisit_Runs.sh', 'run_scripts/Direction_Runs.sh')
             for line in script.commands(ROOT / name)}
    assert len(lines) == 6 and set(lines) < known


def test_the_runs_of_the_reality_check():
    seeds = groups_of('run_scripts/Reality_Check_Runs.sh')
    assert len(seeds) == 4 * 14 * 4 and all(found == ['0'] for found in seeds.values())
    used = {file for line in script.commands(RUN_SCRIPTS / 'Reality_Check_Runs.sh') for file in line if '/' in file}
    assert used == {str(file.relative_to(ROOT)) for file in (ROOT / 'configs' / 'mlrc').rglob('*.yaml')}


def test_baselines_stand_beside_trained_runs(quick, run, monkeypatch, tmp_path, capsys):
    """Their lines, on small data: the table of Result_Evaluations.py has a row of each."""
    monkeypatch.setenv('ARCHS', 'conv4')
    monkeypatch.setenv('DATASETS', 'folder')
    monkeypatch.setenv('EMBED_DIM', '4')
    few = ['--evaluation_metrics', 'e_recall@1']
    assert run(*quick, *few, '--group', 'Trained', '--seed', '0') == 0
    for line in script.commands(RUN_SCRIPTS / 'Baseline_Runs.sh'):
        assert run(*quick, *line, *few) == 0                     # the last --n_epochs counts, which is 0
    capsys.readouterr()
    for select in ('last', 'best_test'):
        assert Result_Evaluations.main(['--runs', str(tmp_path / 'runs'), '--metrics', 'e_recall@1', '--select',
                                        select]) == 0
        table = capsys.readouterr().out
        assert all(f'Frozen conv4 {name}' in table for name in ('kNN', 'PCA4')) and 'Trained' in table


def test_a_run_script_passes_flags_on_and_a_key_by_the_environment(tmp_path):
    """With a python that notes its arguments; exit code 1 lets the others run, 2 ends the script."""
    (tmp_path / 'python').write_text('#!/bin/sh\necho "$@ key=$WANDB_API_KEY" >> $NOTES\n'
                                     'case "$*" in *"seed 1"*) exit $CODE;; esac\n')
    (tmp_path / 'python').chmod(0o755)
    for code, n_lines, key in ((0, 18, '--wandb_key=secret'), (1, 18, '--wandb_key secret'), (2, 2, '')):
        notes = tmp_path / f'notes{code}'
        environment = os.environ | {'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'NOTES': str(notes), 'CODE': str(code)}
        done = subprocess.run(['bash', RUN_SCRIPTS / 'Omniglot_Runs.sh', *key.split(), '--source_path', 'my data'],
                              env=environment, capture_output=True, text=True, cwd=tmp_path)
        lines = notes.read_text().splitlines()
        assert (done.returncode == 2) == (code == 2) and len(lines) == n_lines
        assert 'secret' not in done.stdout + done.stderr
        end = f'--source_path my data key={"secret" * bool(key)}'
        assert all(line.startswith('main.py --dataset') and line.endswith(end) for line in lines)
        assert all(line.count('secret') == bool(key) for line in lines)
