"""Result_Evaluations.py: numbers equal the records to the printed digit, and what is missing or broken is named."""
import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
import types

import numpy as np
import pytest

import Result_Evaluations
from reports import figures, titles
from utilities import columns, run_folder
from utilities.files import write_csv

METRICS = ('e_recall@1', 'nmi', 'f1', 'map_at_r', 'rho_spectrum@1', 'dists@intra_over_inter')


@pytest.fixture
def make(tmp_path):
    """make(group, seed, ...): a run folder with records that a seed fixes; returns it."""
    def write(group, seed, dataset='cub200', n_epochs=4, reached=None, splits=('train', 'test'), finished=True,
              without=(), name=None, **flags):
        random = np.random.default_rng([seed, len(group), *group.encode()])
        folder = tmp_path / 'runs' / dataset / (name or f'{group}_s{seed}')
        folder.mkdir(parents=True)
        reached = n_epochs if reached is None else reached
        rows = [{'epoch': epoch, 'train_loss': random.uniform() if epoch else None, 'lr': 1e-5, 'seconds': 1.0}
                | {f'{split}_{metric}': random.uniform() for split in splits for metric in METRICS
                   if f'{split}_{metric}' not in without} for epoch in range(reached + 1)]
        run_folder.write_yaml(folder / 'config.yaml', {'flags': {
            'dataset': dataset, 'group': group, 'seed': seed, 'n_epochs': n_epochs, 'lr': 1e-5} | flags,
            'split_hash': 'x', 'run_id': f'{group}{seed}'})
        (folder / 'splits.yaml').write_text('hash: x\n')
        write_csv(folder / 'log.csv', [{key: '' if value is None else repr(value) for key, value in row.items()}
                                       for row in rows])
        (folder / 'summary.json').write_text(json.dumps({'finished': finished, 'last_epoch': rows[-1]}))
        return folder
    return write


@pytest.fixture
def evaluate(tmp_path, capsys):
    """Runs Result_Evaluations.py on the made runs; returns (exit code, output, errors)."""
    def call(*arguments, source=None):
        code = Result_Evaluations.main([*(source or ['--runs', str(tmp_path / 'runs')]), *map(str, arguments)])
        return code, *capsys.readouterr()
    return call


def column_of(folder, name):
    with open(folder / 'log.csv', newline='') as file:
        return [float(row[name]) for row in csv.DictReader(file)]


def cells(text):
    """A Markdown table -> {method: [cell, ...]}"""
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in text.splitlines() if line.startswith('|')]
    return {row[0]: row[1:] for row in rows[2:]}


def expected(values, percent):
    scale, digits = (100, 1) if percent else (1, 3)
    return f'{scale * statistics.mean(values):.{digits}f} ± {scale * statistics.stdev(values):.{digits}f}'


@pytest.mark.parametrize('rule, flags', [('last', []), ('best_test', []), ('best_val', []),
                                         ('best_test', ['--per_metric'])])
def test_the_printed_numbers_are_those_of_the_records(rule, flags, make, evaluate, tmp_path):
    folders = {group: [make(group, seed, splits=('train', 'val', 'test')) for seed in range(3)]
               for group in ('CUB_A', 'CUB_B', 'CUB_C')}
    code, out, _ = evaluate('--select', rule, *flags, '--metrics', 'e_recall@1', 'nmi', 'rho_spectrum@1',
                            'train_rho_spectrum@1', '--latex', tmp_path / 't.tex', '--csv', tmp_path / 't.csv',
                            '--markdown', tmp_path / 't.md')
    assert code == 0
    names = ['test_e_recall@1', 'test_nmi', 'test_rho_spectrum@1', 'train_rho_spectrum@1']
    table, latex = {}, (tmp_path / 't.tex').read_text()
    for group, seeds in folders.items():
        for name in names:
            values = []
            for folder in seeds:
                chooser = {'last': None, 'best_test': 'test_e_recall@1', 'best_val': 'val_e_recall@1'}[rule]
                if flags and name in ('test_e_recall@1', 'test_nmi'):
                    chooser = name
                column = column_of(folder, name)
                place = -1 if chooser is None else int(np.argmax(column_of(folder, chooser)))
                values.append(column[place])
            table[group.removeprefix('CUB_'), name] = values
    printed = cells(out)
    for (method, name), values in table.items():
        text = expected(values, percent='rho' not in name)
        assert printed[method][names.index(name)].strip('*') == text
        row, = (line for line in latex.splitlines() if line.startswith(f'{method} &'))
        assert text.replace('±', r'$\pm$') in row
    best = max('ABC', key=lambda method: statistics.mean(table[method, 'test_nmi']))
    assert [method for method in 'ABC' if printed[method][1].startswith('**')] == [best]
    assert not any('**' in printed[method][2] for method in 'ABC')             # rho: no direction is the better one
    with open(tmp_path / 't.csv', newline='') as file:
        for row in csv.DictReader(file):
            assert float(row['mean']) == pytest.approx(np.mean(table[row['method'], row['metric']]), rel=1e-12)
            assert row['n'] == row['n_expected'] == '3'
    words = {'last': 'all metrics at the last epoch', 'best_val': 'all metrics at the epoch of the best validation R@1',
             'best_test': 'all metrics at the epoch of the best test R@1'}[rule]
    words = 'each metric at its own best test epoch' if flags else words
    assert words in out and words in latex and 'over seeds 0, 1, 2' in latex and (tmp_path / 't.md').read_text() in out


def test_the_shared_table_of_several_data_sets_compiles(make, evaluate, tmp_path):
    for group, dataset in (('CUB_Margin_b06', 'cub200'), ('CARS_Margin_b06', 'cars196'),
                           ('SOP_Margin_b06', 'online_products'), ('CUB_50%_of&{x}', 'cub200')):
        for seed in range(2):
            make(group, seed, dataset)
    code, out, _ = evaluate('--latex', tmp_path / 't.tex')
    latex = (tmp_path / 't.tex').read_text()
    assert code == 0 and [len(row) for row in cells(out).values()] == [6, 6]
    for title in ('CUB200-2011', 'CARS196', 'SOP'):
        assert f'\\multicolumn{{2}}{{c}}{{{title}}}' in latex
    assert 'Margin b06 &' in latex and latex.count('Margin b06') == 1
    if shutil.which('pdflatex') is None:
        pytest.skip('pdflatex is not installed')
    (tmp_path / 'd.tex').write_text('\\documentclass{article}\\usepackage{booktabs}\\begin{document}\\small\n' + latex
                                    + '\\end{document}\n')
    done = subprocess.run(['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 'd.tex'], cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / 'd.pdf').exists(), done.stdout[-2000:]


def test_missing_unfinished_and_odd_runs_are_named_and_left_out(make, evaluate, tmp_path):
    kept = [make('A', seed) for seed in (0, 1)]
    make('A', 2, reached=2, finished=False)
    make('B', 0)
    make('B', 1, lr=0.1)
    code, out, _ = evaluate('--seeds', '0', '1', '2')
    assert code == 0 and cells(out)['A'][0].strip('*') == expected(
        [column_of(folder, 'test_e_recall@1')[-1] for folder in kept], percent=True) + '** (n = 2)'.replace(
        '**', '**' if '**' in cells(out)['A'][0] else '')
    for note in ('A_s2: unfinished: 2 of 4 epochs; left out', 'A on cub200: seed(s) 2 missing',
                 'B on cub200: seed(s) 2 missing', 'group B: its runs differ in --lr: 0.1, 1e-05'):
        assert f'- {note}' in out
    code, out, _ = evaluate('--with_unfinished')
    assert 'A_s2: unfinished: 2 of 4 epochs; counted all the same' in out and '(n' not in cells(out)['A'][0]

    (tmp_path / 'runs.sh').write_text('python main.py --group C --seed 0\npython main.py --group B --seed 0\n')
    code, out, _ = evaluate('--script', tmp_path / 'runs.sh')
    assert code == 0 and list(cells(out)) == ['C', 'B', 'A'] and cells(out)['C'] == ['–', '–']
    assert 'C on cub200: seed(s) 0 missing' in out


def test_a_second_run_of_a_seed_counts_where_the_first_did_not_finish(make, evaluate):
    make('A', 0, reached=1, finished=False)
    good = make('A', 0, name='A_s0_1')
    code, out, _ = evaluate('--metrics', 'nmi')
    assert code == 0 and cells(out)['A'] == [f'{100 * column_of(good, "test_nmi")[-1]:.1f}']


def damage(folder, kind):
    log = folder / 'log.csv'
    lines = log.read_text().splitlines(keepends=True)
    if kind == 'cut':
        log.write_text(''.join(lines)[:-5])
    elif kind == 'short line':
        log.write_text(''.join(lines[:-1]) + '4,0.5\n')
    elif kind == 'rows missing':
        log.write_text(''.join(lines[:-2]))
    elif kind == 'no numbers':
        log.write_text(''.join(lines).replace('1e-05', 'x'))
    elif kind == 'summary':
        (folder / 'summary.json').write_text('{"finished": tr')
    elif kind == 'config':
        (folder / 'config.yaml').write_text('flags: {')


@pytest.mark.parametrize('kind, sentence', [
    ('cut', 'A_s1/log.csv: cut off in its last line'),
    ('short line', 'A_s1/log.csv, line 6: cut off or damaged: 2 value'),
    ('rows missing', 'A_s1/log.csv: 2 of 4 epochs, but summary.json has epoch 4: rows are missing'),
    ('no numbers', 'A_s1/log.csv, line 2: not the numbers of a run'),
    ('summary', 'A_s1/summary.json: not a whole summary'), ('config', 'A_s1/config.yaml: not readable'),
])
def test_half_written_records_are_named_and_nothing_is_written(kind, sentence, make, evaluate, tmp_path):
    make('A', 0)
    damage(make('A', 1), kind)
    outputs = ['--latex', tmp_path / 't.tex', '--csv', tmp_path / 't.csv', '--figures', tmp_path / 'figures']
    code, out, error = evaluate(*outputs)
    assert code == 2 and sentence in error and len(error.splitlines()) <= 2 and not out
    assert {path.name for path in tmp_path.iterdir()} == {'runs'}
    assert evaluate('--exclude', 'A_s1')[0] == 0                      # as the sentence says


@pytest.mark.parametrize('arguments, sentence', [
    (['--metrics', 'ami'], 'A_s0: it has no test_ami in epoch 4; its metrics: test_dists@intra_over_inter'),
    (['--metrics', 'f1'], 'A_s1: it has no test_f1 in epoch 4'),
    (['--select', 'best_val'], 'A_s0: --select best_val needs val_e_recall@1, which it has not; it was run without'),
    (['--select_by', 'rho_spectrum@1'], '--select_by rho_spectrum@1: no metric of which more is better'),
    (['--per_metric'], '--per_metric goes with --select best_val or best_test'),
    (['--only', 'zzz'], '2 runs, but none is left'), (['--datasets', 'sop'], '2 runs, but none is left'),
    (['--latex', 'nowhere/t.tex'], '--latex nowhere/t.tex: there is no folder nowhere'),
    (['--figures', '{tmp}/f', '--figure_metrics', 'f1'], 'A_s1: it has no test_f1'),
    (['--project', 'a/b'], 'give --runs FOLDER, or --project'), (['--select', 'x'], '--select: invalid choice'),
])
def test_what_the_user_must_change(arguments, sentence, make, evaluate, tmp_path):
    make('A', 0)
    make('A', 1, without=('test_f1',))
    code, out, error = evaluate(*(argument.replace('{tmp}', str(tmp_path)) for argument in arguments))
    assert code == 2 and sentence in error and not out and not (tmp_path / 'f').exists()


def test_a_file_in_the_place_of_a_folder_and_the_other_way_round(make, evaluate, tmp_path):
    for seed in range(3):
        make('A', seed)
    (tmp_path / 'file').write_text('mine')
    code, _, error = evaluate('--figures', tmp_path / 'file')
    assert code == 2 and f'--figures {tmp_path / "file"}: it is a file; give a folder' in error
    (tmp_path / 'folder').mkdir()
    for flag in ('--latex', '--csv'):
        code, _, error = evaluate(flag, tmp_path / 'folder')
        assert code == 2 and 'is a folder; give' in error
    assert (tmp_path / 'file').read_text() == 'mine' and not list((tmp_path / 'folder').iterdir())


def test_groups_that_cannot_be_averaged(make, evaluate, tmp_path):
    assert 'there is no such folder' in evaluate()[2]
    (tmp_path / 'runs').mkdir()
    assert evaluate()[0] == 2 and 'there are no run folders in it' in evaluate(source=['--runs', str(tmp_path)])[2]
    make('A', 0)
    make('A', 1, dataset='cars196')
    code, _, error = evaluate()
    assert code == 2 and 'group A: it has runs of different data sets' in error and 'cars196/A_s1 (cars196)' in error
    assert evaluate('--datasets', 'cub200')[0] == 0
    make('A', 0, name='again')
    code, _, error = evaluate('--datasets', 'cub200')
    assert code == 2 and 'group A: seed 0 is there twice' in error
    make('B', 0, finished=False, reached=1)
    assert 'no run counts:\n  B_s0: unfinished: 1 of 4 epochs' in evaluate('--only', 'B')[2]
    folder = make('C', 0)
    text = (folder / 'log.csv').read_text()
    (folder / 'log.csv').write_text(text.replace(str(column_of(folder, 'test_nmi')[-1]), 'nan'))
    code, _, error = evaluate('--only', 'C_')
    assert code == 2 and 'group C, seed(s) 0: test_nmi is not a number' in error


def test_figures(make, evaluate, tmp_path):
    for group in ('A', 'B', 'C'):
        for seed in range(3):
            make(group, seed)
    code, out, _ = evaluate('--figures', tmp_path / 'f', '--select', 'best_test', '--per_metric')
    names = {path.name for path in (tmp_path / 'f').iterdir()}
    assert code == 0 and names == {f'cub200_{name}.png' for name in (
        'correlations', 'test_e_recall@1_against_test_nmi', 'test_e_recall@1_against_train_rho_spectrum@1',
        'test_e_recall@1_against_train_dists@intra_over_inter', 'curves_test_e_recall@1', 'curves_test_nmi',
        'bars_test_e_recall@1', 'bars_test_nmi')}
    assert out.count('figure: ') == 8
    for name in names:
        assert (tmp_path / 'f' / name).read_bytes().startswith(b'\x89PNG')


def test_the_correlation_is_pearsons():
    x, y = np.random.default_rng(0).normal(size=(2, 20))
    from scipy.stats import pearsonr
    assert figures.correlation(x, y) == (pytest.approx(pearsonr(x, y)[0]), 20)
    assert figures.correlation([1, 2, np.nan, 3], [1, 2, 3, 3.5])[1] == 3
    assert np.isnan(figures.correlation([1, 1, 1], [1, 2, 3])[0])


def test_key_names():
    for key, name in (('Test: discriminative_e_recall: e_recall@1', 'test_e_recall@1'),
                      ('Train: discriminative_dists: dists@intra_over_inter', 'train_dists@intra_over_inter'),
                      ('Test: discriminative_nmi: nmi', 'test_nmi'), ('test/c_recall@1', 'test_c_recall@1'),
                      ('lr/backbone', 'lr/backbone'), ('seconds', 'seconds')):
        assert columns.from_backend(key) == name
    assert titles.metric('test_e_recall@4') == 'R@4' and titles.metric('train_nmi') == 'train NMI'
    assert titles.metric('test_parent_nmi') == 'parent NMI' and titles.metric('val_within_c_recall@1') == (
        'val within R@1 (cosine)')
    assert titles.is_fraction('test_parent_nmi') and not titles.is_fraction('test_nearby_nmi')


class FakeProject:
    """What wandb.Api().runs gives: runs with full histories; it can fail at one of them."""

    def __init__(self, runs, fails_at=None):
        self.runs, self.fails_at, self.loaded = runs, fails_at, []

    def __len__(self):
        return len(self.runs)

    def __iter__(self):
        for number, run in enumerate(self.runs):
            if number == self.fails_at:
                raise ConnectionError('the network is gone')
            def scan_history(page_size, run=run):
                self.loaded.append(run['id'])
                return iter(run['history'])
            yield types.SimpleNamespace(**run, lastHistoryStep=len(run['history']), scan_history=scan_history)


def public_run(seed, state='finished', n_epochs=150):
    random = np.random.default_rng(seed)
    history = [{'_step': epoch, '_timestamp': 1.0, 'Test: discriminative_e_recall: e_recall@1': random.uniform(),
                'Test: discriminative_nmi: nmi': 'NaN' if epoch == 3 else random.uniform(),
                'Train: discriminative_rho_spectrum: rho_spectrum@1': random.uniform(),
                'Test: discriminative_rho_spectrum: rho_spectrum@0': {'_type': 'histogram'}}
               for epoch in range(n_epochs)]
    return {'id': f'id{seed}', 'name': f'CUB_Margin_s{seed}', 'group': 'CUB_Margin', 'state': state,
            'config': {'dataset': 'cub200', 'seed': seed, 'n_epochs': 150, '_wandb': {}}, 'history': history}


def test_a_project_at_wandb_with_the_public_key_names(evaluate, tmp_path, monkeypatch):
    wandb = pytest.importorskip('wandb')
    runs = [public_run(0), public_run(1), public_run(2, state='crashed', n_epochs=20)]
    project = FakeProject(runs, fails_at=1)
    monkeypatch.setattr(wandb, 'Api', lambda timeout: types.SimpleNamespace(runs=lambda path, per_page: project))
    source = ['--project', 'someone/Revisit', '--cache', str(tmp_path / 'cache')]
    code, _, error = evaluate(source=source)
    assert code == 2 and 'stopped answering after 1 of 3 runs (the network is gone)' in error and 'start again' in error
    project.fails_at = None
    code, out, _ = evaluate('--select', 'best_test', '--per_metric', source=source)
    assert code == 0 and project.loaded == ['id0', 'id1', 'id2']         # the first came from the cache
    best = [max(row['Test: discriminative_e_recall: e_recall@1'] for row in run['history']) for run in runs[:2]]
    assert cells(out)['Margin'][0] == expected(best, percent=True)
    assert 'CUB_Margin_s2: crashed: 19 of 150 epochs; left out' in out
    runs[2]['state'] = 'finished'
    code, out, _ = evaluate('--metrics', 'train_rho_spectrum@1', source=source)
    assert code == 0 and project.loaded[3:] == ['id2'] and 'id2' not in out
    project.runs = []
    assert 'there are no runs in it' in evaluate(source=source)[2]
    assert 'expected ENTITY/PROJECT' in evaluate(source=['--project', 'x'])[2]
    del runs[0]['config']['seed']
    project.runs = runs[:1]
    shutil.rmtree(tmp_path / 'cache')
    code, _, error = evaluate(source=source)
    assert code == 2 and 'someone/Revisit/id0 (CUB_Margin_s0): its config at W&B has no seed' in error
    project.runs = runs
    assert evaluate('--exclude', 'id0', source=source)[0] == 0


def test_the_command_line(make, tmp_path):
    make('A', 0)
    done = subprocess.run([sys.executable, 'Result_Evaluations.py', '--runs', tmp_path / 'runs'], capture_output=True,
                          text=True, cwd=Result_Evaluations.__file__.rpartition('/')[0])
    assert done.returncode == 0 and re.search(r'\| A \| \d+\.\d \| \d+\.\d \|', done.stdout), done.stderr
