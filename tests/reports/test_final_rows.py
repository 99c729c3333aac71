"""Result_Evaluations.py --rows and --compare: files with a line per run."""
import csv

import numpy as np
import pytest
from scipy import stats

from records import run_folder
from reports import final_rows
from utilities.files import read_csv


@pytest.fixture
def rows_of_runs(make, evaluate, tmp_path):
    """rows_of_runs(name, *flags): the file of --rows of the made runs."""
    def write(name, *flags):
        code, out, _ = evaluate('--metrics', 'nmi', 'rho_spectrum@1', '--rows', tmp_path / name, *flags)
        assert code == 0 and f'rows: {tmp_path / name}' in out
        return tmp_path / name
    return write


def test_a_line_has_the_device_and_the_seconds_of_all_epochs(make, evaluate, tmp_path):
    for name, versions, device in (('A', {'processor': 'AMD EPYC'}, None),
                                   ('B', {'processor': 'AMD EPYC', 'cuda': '13'}, None),
                                   ('C', {'processor': 'Xeon', 'cuda': '13'}, 'cpu'),
                                   ('D', {'processor': 'Apple M2'}, 'auto'), ('E', {'processor': 'Apple M2'}, 'cpu'),
                                   ('F', {'processor': 'Intel'}, 'mps')):
        folder = make(name, 0, n_epochs=4, device=device)                  # a second in each of epochs 0 to 4
        run_folder.write_yaml(folder / 'config.yaml', run_folder.read(folder) | {'versions': versions})
    assert evaluate('--rows', tmp_path / 'rows.csv')[0] == 0
    lines = [(line['group'], line['device'], line['seconds']) for line in read_csv(tmp_path / 'rows.csv')]
    devices = ['AMD EPYC', 'CUDA', 'Xeon', 'MPS (Apple M2)', 'Apple M2', 'MPS (Intel)']
    assert lines == [(name, device, '5') for name, device in zip('ABCDEF', devices, strict=True)]
    again = final_rows.read(tmp_path / 'rows.csv')
    assert [run.flags['device'] for run in again] == devices


def test_a_table_of_the_rows_is_the_table_of_the_runs(make, evaluate, rows_of_runs, tmp_path):
    for group in ('CUB_A', 'CUB_B'):
        for seed in range(3):
            # the hash of the test split is no metric; the seeds' runs take different times
            make(group, seed, test='86c957e2034a4870', values={'seconds': [seed] * 5})
    flags = ['--metrics', 'nmi', 'rho_spectrum@1', '--markdown', tmp_path / 'of_runs.md']
    for select in ('last', 'best_test'):
        file = rows_of_runs(f'{select}.csv', '--select', select)
        assert evaluate(*flags, '--select', select)[0] == 0
        wanted = (tmp_path / 'of_runs.md').read_text().splitlines()
        code, _, error = evaluate(*flags, source=['--runs', str(file)])
        assert code == 0, error
        again = (tmp_path / 'of_runs.md').read_text()
        assert again.splitlines()[:4] == wanted[:4] and 'differ in' not in again
    with open(tmp_path / 'last.csv', newline='') as opened:
        rows = list(csv.DictReader(opened))
    assert [(row['dataset'], row['group'], row['seed'], row['epoch']) for row in rows] == [
        ('cub200', f'CUB_{name}', str(seed), '4') for name in 'AB' for seed in range(3)]
    code, out, error = evaluate('--per_metric', '--select', 'best_test', '--rows', tmp_path / 'no.csv', '--latex',
                                tmp_path / 'no.tex')
    assert code == 2 and '--rows does not go with --per_metric' in error and not out and not [*tmp_path.glob('no.*')]
    assert evaluate('--rows', tmp_path / 'nowhere' / 'no.csv')[0] == 2
    (tmp_path / 'other.csv').write_text('a,b\n1,2\n')
    code, _, error = evaluate(source=['--runs', str(tmp_path / 'other.csv')])
    assert code == 2 and 'other.csv, line 2: not a line that --rows wrote' in error


def test_rows_of_all_epochs_are_the_runs_again(make, evaluate, rows_of_runs, tmp_path):
    for seed in range(3):
        make('CUB_A', seed)
    file = rows_of_runs('all.csv', '--all_epochs')
    with open(file, newline='') as opened:
        rows = list(csv.DictReader(opened))
    assert [(row['seed'], row['epoch']) for row in rows] == [
        (str(seed), str(epoch)) for seed in range(3) for epoch in (4, 0, 1, 2, 3)]
    known = {'dataset', 'group', 'seed', 'epoch', 'test_nmi', 'test_rho_spectrum@1'}
    for row in rows:
        assert ({name for name, text in row.items() if text} == known) == (row['epoch'] != '4')
        assert len(row['test_nmi'].removeprefix('0.').lstrip('0')) <= 6
    metrics = ['--metrics', 'nmi', 'rho_spectrum@1', '--markdown', tmp_path / 'table.md']
    for flags in (['--select', 'last'], ['--select', 'best_test'], ['--select', 'best_test', '--per_metric']):
        assert evaluate(*metrics, *flags)[0] == 0
        wanted = (tmp_path / 'table.md').read_text()
        assert evaluate(*metrics, *flags, source=['--runs', str(file)])[0] == 0
        assert (tmp_path / 'table.md').read_text() == wanted
    for rule in (['--select', 'last'], ['--select', 'best_test']):
        one, all_epochs = rows_of_runs('one.csv', *rule), rows_of_runs('every.csv', *rule, '--all_epochs')
        code, out, _ = evaluate('--compare', one, all_epochs, '--metrics', 'nmi', source=['--digits', '2'])
        assert code == 0 and '1 differences, 0 of them' in out and '0.00 ± 0.00 |' in out
    text = file.read_text()
    row = text.splitlines()[-1]
    for added, sentence in ((f'{row}\n', 'line 17: duplicate row: epoch 3 of CUB_A_s2 on cub200'),
                            (f'{row},1\n', 'line 17: cut off or damaged: 23 values for 23 columns'),
                            ('cub200,CUB_A,3,4,0.5,0.5\n', 'line 17: cut off or damaged: 6 values for 23 columns'),
                            (row[:20], 'cut off in its last line')):
        file.write_text(text + added)
        code, _, error = evaluate(source=['--runs', str(file)])
        assert code == 2 and f'all.csv{", " * added.endswith(chr(10))}' in error and sentence in error


def written(file, scores):
    """A file of --rows with one metric. scores: {group: {seed: value}}."""
    lines = [f'cub200,{group},{seed},4,{float(value)!r}'
             for group, values in scores.items() for seed, value in values.items()]
    file.write_text('\n'.join(['dataset,group,seed,epoch,test_nmi', *lines]) + '\n')
    return file


def test_the_comparison_finds_what_changed_beyond_seeds(evaluate, tmp_path):
    random = np.random.default_rng(0)
    base = dict(enumerate(random.normal(.6, .02, 5)))
    noise = random.normal(0, .002, 5)
    old = dict.fromkeys(('worse', 'clear', 'same', 'noisy', 'gone', 'more', 'others'), base) | {'once': {0: .5}}
    new = {'worse': {seed: value - .03 + noise[seed] for seed, value in base.items()}, 'same': base,
           'clear': {seed: value - .1 + noise[seed] for seed, value in base.items()},
           'noisy': dict(enumerate(base[seed] + value for seed, value in enumerate(random.normal(0, .03, 5)))),
           'more': dict(enumerate(random.normal(.6, .02, 9))), 'new': base,
           'others': dict(enumerate(random.normal(.6, .02, 9), start=20)), 'once': base}
    files = [written(tmp_path / f'{name}.csv', scores) for name, scores in (('old', old), ('new', new))]
    code, out, _ = evaluate('--compare', *files, '--metrics', 'nmi', source=['--digits', '2'])
    assert code == 0
    rows = {cells[2]: cells for line in out.splitlines() if line.startswith('| CUB') for cells in
            [[cell.strip() for cell in line.split('|')]]}
    assert list(rows) == ['worse', 'clear', 'same', 'noisy', 'more', 'others', 'once']
    assert '±' not in rows['once'][6] and not rows['once'][7]           # one old run says nothing of other seeds
    del rows['once']
    values = {name: [list(scores[name].values()) for scores in (old, new)] for name in rows}
    p = {name: stats.ttest_rel(*values[name]).pvalue for name in ('worse', 'clear', 'noisy')}
    p |= {'same': 1, 'others': stats.ttest_ind(*values['others'], equal_var=False).pvalue,
          'more': stats.ttest_rel(values['more'][0], values['more'][1][:5]).pvalue}
    order, so_far = sorted(p, key=p.get), 0
    for rank, name in enumerate(order):                       # Holm's method, by hand
        so_far = max(so_far, min(1, p[name] * (len(p) - rank)))
        assert rows[name][7] == '< 0.001' if so_far < .001 else float(rows[name][7]) == pytest.approx(so_far, abs=6e-4)
    assert [name for name in rows if rows[name][6].startswith('**')] == ['worse', 'clear']
    assert rows['clear'][7] == '< 0.001'
    change = np.subtract(*values['worse'][::-1])
    half = stats.t.ppf(.975, 4) * stats.sem(change)
    assert rows['worse'][6] == f'**{100 * change.mean():.2f} ± {100 * half:.2f}**'
    assert '7 differences, 2 of them' in out
    assert evaluate('--compare', *files, '--metrics', 'nmi', 'test_nmi', source=['--digits', '2'])[1] == out
    for flag in ('--markdown', '--latex', '--csv', '--rows', '--figures', '--runs', '--script', '--baseline'):
        code, _, error = evaluate('--compare', *files, flag, tmp_path / 'new', source=['--digits', '2'])
        assert code == 2 and f'leave out {flag}' in error and not (tmp_path / 'new').exists()
    assert 'leave out --select' in evaluate('--compare', *files, '--select', 'best_test', source=['--digits', '2'])[2]
    assert 'Only in the old file: gone on CUB200-2011.' in out and 'Only in the new file: new on' in out
    files[1] = written(tmp_path / 'third.csv', {'other': base})
    code, _, error = evaluate('--compare', *files, source=['--digits', '2'])
    assert code == 2 and 'no group on a test set in common' in error
    (tmp_path / 'twice.csv').write_text('dataset,group,seed,epoch,test_nmi,test_hash\ncub200,same,0,4,0.1,\n'
                                        'cub200,same,0,4,0.9,abc\n')
    code, _, error = evaluate('--compare', files[0], tmp_path / 'twice.csv', source=['--digits', '2'])
    assert code == 2 and 'a second run of seed 0 in same; leave one out' in error
    files[1] = written(tmp_path / 'nan.csv', {'same': base | {3: np.nan}})
    code, _, error = evaluate('--compare', *files, '--metrics', 'nmi', source=['--digits', '2'])
    assert code == 2 and 'nan.csv, line 5: test_nmi is not a number in epoch 4' in error
