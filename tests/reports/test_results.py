"""Result_Evaluations.py: numbers equal the records to the printed digit, and what is missing or broken is named."""
import csv
import statistics

import numpy as np
import pytest
import scipy.stats

from records import run_folder
from reports import final_rows
from tests.reports.printed import cells, cells_on, column_of, compile_latex, expected


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


def test_a_run_whose_settings_have_changed_is_left_out_of_means(make, evaluate, tmp_path):
    folders = [make('CUB_A', seed, bs=8) for seed in range(3)]
    config = run_folder.read(folders[2])
    change = {'at_epoch': 3, 'flags': {'bs': {'from': 12, 'to': 8}}}
    run_folder.write_yaml(folders[2] / 'config.yaml', config | {'merged': [change]})
    code, out, _ = evaluate('--metrics', 'nmi', '--rows', tmp_path / 'rows.csv')
    values = [column_of(folder, 'test_nmi')[-1] for folder in folders[:2]]
    assert code == 0 and cells(out)['A'][0].strip('*').startswith(expected(values, percent=True))
    assert '- CUB_A_s2: its settings have changed within the run, as its config.yaml lists; left out' in out
    again = evaluate('--metrics', 'nmi', source=['--runs', str(tmp_path / 'rows.csv')])
    assert cells(again[1]) == cells(out)


def test_a_metric_that_is_given_twice_or_by_two_names_is_one_column(make, evaluate, tmp_path):
    for group in ('CUB_A', 'CUB_B'):
        for seed in range(2):
            make(group, seed)
    outputs = ['--latex', tmp_path / 't.tex', '--rows', tmp_path / 'r.csv']
    once, again = (evaluate('--metrics', *metrics, '--baseline', 'CUB_B', *outputs)
                   for metrics in (['nmi', 'map_at_r'], ['nmi', 'test_nmi', 'map_at_r', 'nmi', 'mAP_c']))
    assert once[0] == 0 and once == again


def test_differences_to_a_baseline(make, evaluate, tmp_path):
    """
    Paired over the seeds of both, and without common seeds Welch's, against scipy; corrected over the groups of a
    column; single runs.
    """
    seeds_of = {'A': [7, 8, 9], 'B': range(4), 'C': [0], 'D': range(4), 'E': range(3)}
    a, b, c, d, e = ([column_of(make(f'CUB_{name}', seed), 'test_e_recall@1')[-1] for seed in seeds]
                     for name, seeds in seeds_of.items())
    flags = ['--metrics', 'e_recall@1', 'rho_spectrum@1', '--latex', tmp_path / 't.tex', '--csv', tmp_path / 't.csv']
    code, out, _ = evaluate(*flags, '--baseline', 'CUB_B')
    found = cells(out)
    assert code == 0 and '| method | R@1 | Δ R@1 | rho@1 | Δ rho@1 |' in out and 'Δ: difference to B, ±' in out
    assert "corrected by Holm's method for the methods of its data set and column" in out
    welch, paired = scipy.stats.ttest_ind(a, b, equal_var=False), scipy.stats.ttest_rel(d, b)
    shared = scipy.stats.ttest_rel(e, b[:3])
    small, middle, large = sorted([welch.pvalue, paired.pvalue, shared.pvalue])
    middle_corrected = max(3 * small, 2 * middle)
    corrected = {small: 3 * small, middle: middle_corrected, large: max(middle_corrected, large)}
    corrected = {p: min(1, value) for p, value in corrected.items()}
    wanted = {}
    for method, test, words in (('A', welch, "Welch's t-test, n = 3 and 4"), ('D', paired, 'n = 4'),
                                ('E', shared, 'n = 3')):
        low, high = test.confidence_interval()
        wanted[method] = (low + high) / 2, (high - low) / 2, test.pvalue, corrected[test.pvalue]
        mean, half, _, p = wanted[method]
        assert found[method][1] == f'{100 * mean:+.1f} ± {100 * half:.1f} (p = {p:.3f}, {words})'
    assert found['B'][1] == found['B'][3] == '' and found['C'][1] == f'{100 * (c[0] - statistics.mean(b)):+.1f}'
    assert r' & R@1 & $\Delta$ R@1 & ' in (tmp_path / 't.tex').read_text().replace('Method', '')
    with open(tmp_path / 't.csv', newline='') as file:
        rows = {row['method']: row for row in csv.DictReader(file) if row['metric'] == 'difference_test_e_recall@1'}
    for method, numbers in wanted.items():
        row = [float(rows[method][name]) for name in ('mean', 'interval', 'p', 'p_holm')]
        assert row == pytest.approx(numbers, rel=1e-12)
    assert (rows['A']['test'], rows['A']['n'], rows['D']['test']) == ("Welch's t-test", '3', 'paired t-test')
    code, out, _ = evaluate(*flags, '--baseline', 'C', '--only', 'CUB_A', 'CUB_C')      # the name of the method
    known = scipy.stats.ttest_1samp(a, c[0])
    low, high = (bound - c[0] for bound in known.confidence_interval())
    assert code == 0 and 'Holm' not in out and cells(out)['A'][1] == (
        f'{50 * (low + high):+.1f} ± {50 * (high - low):.1f} (p = {known.pvalue:.3f}, one-sample t-test, n = 3 and 1)')
    assert 'A single run of C counts as known: ' in out
    make('CARS_A', 0, 'cars196')
    code, out, _ = evaluate('--metrics', 'nmi', '--baseline', 'CUB_B')         # which has no runs on the other data set
    assert code == 0 and '| data set | method | NMI | Δ NMI |' in out
    code, _, _ = evaluate('--metrics', 'nmi', '--baseline', 'CUB_B', '--latex', tmp_path / 'below.tex')
    latex = (tmp_path / 'below.tex').read_text().splitlines()
    first, second = (latex.index(f'\\multicolumn{{3}}{{l}}{{{title}}} \\\\') for title in ('CARS196', 'CUB200-2011'))
    assert latex[first - 2] == r'Method & NMI & $\Delta$ NMI \\' and latex[second - 1] == r'\midrule'
    assert [line.partition(' &')[0] for line in latex[first + 1:second - 1]] == ['A']
    assert [line.partition(' &')[0] for line in latex[second + 1:second + 6]] == list('ABCDE')
    found = [cells_on(title, out)['A'] for title in ('CARS196', 'CUB200-2011')]
    assert [[bool(cell) for cell in row] for row in found] == [[True, False], [True, True]]
    code, _, err = evaluate('--baseline', 'CUB_D', '--exclude', 'CUB_D')
    assert code == 2 and '--baseline CUB_D: the table has no runs of this group; choose from CARS_A, CUB_A, CUB' in err
    compile_latex('\n'.join(latex), tmp_path)


def test_single_runs_are_not_bold_beside_means(make, evaluate):
    """Nor do they keep the best of the others from being bold; a mean over fewer seeds is compared."""
    values = {'A': [.6, .6], 'B': [.5, .5, .5], 'once': [.9]}
    for group, last in values.items():
        for seed, value in enumerate(last):
            make(group, seed, n_epochs=0, values={'test_nmi': [value]})
    code, out, _ = evaluate('--metrics', 'nmi')
    assert code == 0 and [cells(out)[group] for group in values] == [
        ['**60.0 ± 0.0** (n = 2)'], ['50.0 ± 0.0'], ['90.0 (n = 1)']]
    assert 'Bold: the best mean over several seeds.' in out
    code, out, _ = evaluate('--metrics', 'nmi', '--seeds', '0', '--only', 'A_s0', 'once')
    assert cells(out)['once'] == ['**90.0**'] and 'Bold' not in out


def test_the_shared_table_of_several_data_sets_compiles(make, evaluate, tmp_path):
    for group, dataset in (('CUB_Margin_b06', 'cub200'), ('CARS_Margin_b06', 'cars196'),
                           ('SOP_Margin_b06', 'online_products'), ('CUB_[50%]|of<&{x}*', 'cub200')):
        for seed in range(2):
            make(group, seed, dataset)
    code, out, _ = evaluate('--latex', tmp_path / 't.tex')
    latex = (tmp_path / 't.tex').read_text()
    rows = [line.split(' | ')[:2] for line in out.splitlines() if line.startswith('|')]
    assert code == 0 and rows == [
        ['| data set', 'method'], ['|---|---|---|---|'], ['| CARS196', 'Margin b06'], ['| CUB200-2011', 'Margin b06'],
        ['| CUB200-2011', '[50%]\\|of<&{x}*'], ['| SOP', 'Margin b06']]
    for title in ('CUB200-2011', 'CARS196', 'SOP'):
        assert f'\\multicolumn{{2}}{{c}}{{{title}}}' in latex
    assert 'Margin b06 &' in latex and latex.count('Margin b06') == 1
    assert r'{[}50\%]$|$of$<$\&\{x\}{*} &' in latex
    compile_latex(f'\\small\n{latex}', tmp_path)


def test_missing_unfinished_and_odd_runs_are_named_and_left_out(make, evaluate, tmp_path):
    kept = [make('A', seed) for seed in (0, 1)]
    make('A', 2, reached=2, finished=False)
    make('B', 0)
    make('B', 1, lr=0.1)
    code, out, _ = evaluate('--seeds', '0', '1', '2')
    assert code == 0 and cells(out)['A'][0].strip('*') == expected(
        [column_of(folder, 'test_e_recall@1')[-1] for folder in kept], percent=True) + '** (n = 2)'.replace(
        '**', '**' if '**' in cells(out)['A'][0] else '')
    for note in ('A_s2: unfinished: 2 of 4 epochs; left out', 'A on CUB200-2011: seed(s) 2 missing',
                 'B on CUB200-2011: seed(s) 2 missing', 'group B: its runs differ in --lr: 0.1, 1e-05'):
        assert f'- {note}' in out
    code, out, _ = evaluate('--with_unfinished')
    assert 'A_s2: unfinished: 2 of 4 epochs; counted all the same' in out and '(n' not in cells(out)['A'][0]



def test_a_script_restricts_the_table_to_its_runs(make, evaluate, tmp_path):
    for group in ('A', 'B', 'demo'):
        for seed in range(2):
            make(group, seed)
    make('B', 0, dataset='cars196')
    # the public run script has lines with a stray word after the group, which main.py refuses
    lines = [f'python main.py --dataset cub200 --group {group} --seed 0\n' for group in ('C', 'D _3', 'B', 'A')]
    (tmp_path / 'runs.sh').write_text(''.join(lines))
    code, out, error = evaluate('--script', tmp_path / 'runs.sh')
    assert code == 0 and list(cells(out)) == ['C', 'B', 'A'] and cells(out)['C'] == ['–', '–']
    assert 'Left out:' in error and 'runs.sh, run 2: ' in error
    assert 'C on CUB200-2011: seed(s) 0 missing' in out and 'One run each, seed 0' in out and 'CARS196' not in out
    (tmp_path / 'two.sh').write_text(''.join([*lines, 'python main.py --dataset cars196 --group B --seed 0\n']))
    out = evaluate('--script', tmp_path / 'two.sh')[1]
    assert list(cells_on('CUB200-2011', out)) == ['C', 'B', 'A'] and list(cells_on('CARS196', out)) == ['B']
    code, _, error = evaluate('--script', tmp_path / 'runs.sh', '--only', 'demo')
    assert code == 2 and 'of its 3 runs, such as C_s0 on cub200, none is among the 2 that were found' in error


def test_cells_with_fewer_seeds_than_others_show_their_n_also_where_a_script_has_no_more(make, evaluate, tmp_path):
    runs = [('A', 0), ('A', 1), ('B', 0)]
    for group, seed in runs:
        make(group, seed)
    make('B', 0, dataset='cars196')
    lines = [f'python main.py --dataset cub200 --group {group} --seed {seed}\n' for group, seed in runs]
    lines.append('python main.py --dataset cars196 --group B --seed 0\n')
    (tmp_path / 'runs.sh').write_text(''.join(lines))
    code, out, _ = evaluate('--script', tmp_path / 'runs.sh', '--metrics', 'nmi')
    found = cells_on('CUB200-2011', out)
    assert code == 0 and 'over seeds 0, 1;' in out and 'n where it is smaller' in out and 'missing' not in out
    assert '(n' not in found['A'][0] and [row['B'][0].endswith(' (n = 1)') for row in (
        found, cells_on('CARS196', out))] == [True, True]
    make('C', 2)
    make('C', 3)
    (tmp_path / 'others.sh').write_text(''.join([*lines, *(
        f'python main.py --dataset cub200 --group C --seed {seed}\n' for seed in (2, 3))]))
    code, out, _ = evaluate('--script', tmp_path / 'others.sh', '--metrics', 'nmi')
    assert 'over seeds 0, 1, 2, 3;' in out and all(
        cells_on('CUB200-2011', out)[group][0].endswith(' (n = 2)') for group in 'AC')
    code, out, _ = evaluate('--script', tmp_path / 'runs.sh', '--metrics', 'nmi', '--seeds', '0', '1')
    assert code == 0 and 'B on CUB200-2011: seed(s) 1 missing' in out


def test_a_second_run_of_a_seed_counts_where_the_first_did_not_finish(make, evaluate):
    make('A', 0, reached=1, finished=False)
    good = make('A', 0, name='A_s0_1')
    code, out, _ = evaluate('--metrics', 'nmi')
    assert code == 0 and cells(out)['A'] == [f'{100 * column_of(good, "test_nmi")[-1]:.1f}']


def cut_log(edit):
    """A function that replaces the lines of log.csv in a run folder by edit(lines)."""
    def damage(folder):
        lines = (folder / 'log.csv').read_text().splitlines(keepends=True)
        (folder / 'log.csv').write_text(edit(lines))
    return damage


@pytest.mark.parametrize('damage, sentence', [
    (cut_log(lambda lines: ''.join(lines)[:-5]), 'log.csv: cut off in its last line'),
    (cut_log(lambda lines: ''.join(lines[:-1]) + '4,0.5\n'), 'log.csv, line 6: cut off or damaged: 2 value'),
    (cut_log(lambda lines: ''.join(lines[:-2])),
     'log.csv: 2 of 4 epochs, but summary.json has epoch 4: rows are missing'),
    (cut_log(lambda lines: ''.join(lines[:2] + lines[3:])), 'log.csv: rows are missing: its epochs are not 0, 1, 2'),
    (cut_log(lambda lines: ''.join(lines).replace('1e-05', 'x')), 'log.csv, line 2: not the numbers of a run'),
    (lambda folder: (folder / 'summary.json').write_text('{"finished": tr'), 'summary.json: not a complete summary'),
    (lambda folder: (folder / 'config.yaml').write_text('flags: {'), 'config.yaml: not readable'),
])
def test_half_written_records_are_named_and_nothing_is_written(damage, sentence, make, evaluate, tmp_path):
    make('A', 0)
    damage(make('A', 1))
    outputs = ['--latex', tmp_path / 't.tex', '--csv', tmp_path / 't.csv', '--figures', tmp_path / 'figures']
    code, out, error = evaluate(*outputs)
    assert code == 2 and f'A_s1/{sentence}' in error and len(error.splitlines()) <= 2 and not out
    assert {path.name for path in tmp_path.iterdir()} == {'runs'}
    assert evaluate('--exclude', 'A_s1')[0] == 0                      # as the sentence says


@pytest.mark.parametrize('arguments, sentence', [
    (['--metrics', 'ami'], 'A_s0: it has no test_ami in epoch 4; its metrics: test_dists@intra_over_inter'),
    (['--select', 'best_val'], 'A_s0: --select best_val needs val_e_recall@1, which it does not have; it was'),
    (['--select_by', 'rho_spectrum@1'], '--select_by rho_spectrum@1: not a metric that says which'),
    (['--select_by', 'val_nmi'], '--select_by val_nmi: give it without its split, as nmi'),
    (['--per_metric'], '--per_metric goes with --select best_val or best_test'),
    (['--only', 'zzz'], '2 runs, but none is left'), (['--datasets', 'sop'], '2 runs, but none is left'),
    (['--latex', 'nowhere/t.tex'], '--latex nowhere/t.tex: there is no folder nowhere'),
    (['--figures', '{tmp}/f', '--figure_metrics', 'ami'], 'A_s0: it has no test_ami in epoch 4; its metrics: test_d'),
    (['--figures', '{tmp}/runs/cub200/A_s0/log.csv'], 'A_s0/log.csv: it is a file; give a folder'),
    (['--figure_metrics', 'nmi'], '--figure_metrics goes with --figures'),
    (['--format', 'pdf'], '--format goes with --figures'), (['--cache', 'c'], '--cache goes with --project'),
    (['--project', 'a/b'], 'give --runs FOLDER, or --project'),
])
def test_what_the_user_must_change(arguments, sentence, make, evaluate, tmp_path):
    make('A', 0)
    make('A', 1, without=('test_f1',))
    code, out, error = evaluate(*(argument.replace('{tmp}', str(tmp_path)) for argument in arguments))
    assert code == 2 and sentence in error and not out and not (tmp_path / 'f').exists()


def test_a_folder_of_images_has_its_own_name_in_the_tables(make, evaluate, tmp_path):
    for seed in range(2):
        make('A', seed, 'folder', source_path='data/photos')
    assert evaluate('--latex', tmp_path / 't.tex')[0] == 0 and '{photos}' in (tmp_path / 't.tex').read_text()
    make('A', 2, 'folder', source_path='data/others')
    assert evaluate('--latex', tmp_path / 't.tex')[0] == 0 and '{folder}' in (tmp_path / 't.tex').read_text()


def test_a_folder_with_the_name_of_another_data_set_is_not_averaged_with_it(make, evaluate):
    folders = [make('A', 0, 'folder', source_path='data/cub200'), make('A', 1)]
    out = evaluate('--metrics', 'nmi')[1]
    for title, folder in zip(('folder', 'CUB200-2011'), folders, strict=True):
        assert cells_on(title, out) == {'A': [f'{100 * column_of(folder, "test_nmi")[-1]:.1f}']}


def test_a_run_below_several_folders_counts_once(make, evaluate, tmp_path):
    file = str(tmp_path / 'r.csv')
    folders = [str(make('A', seed)) for seed in range(2)]
    once = evaluate('--rows', file)
    assert evaluate('--rows', file, source=['--runs', *folders, str(tmp_path / 'runs')]) == once
    assert cells(evaluate(source=['--runs', file, file])[1]) == cells(once[1])


def test_metrics_of_the_moving_average(make, evaluate):
    for seed in range(2):
        make('A', seed, values={'ema_test_nmi': [.1, .2, .3, .4, .5]})
    code, out, _ = evaluate('--metrics', 'nmi', 'ema_test_nmi', '--select', 'best_test', '--per_metric')
    assert code == 0 and '| method | NMI | EMA NMI |' in out and '; in percent' in out
    code, out, _ = evaluate('--metrics', 'ema_test_nmi')
    assert code == 0 and cells(out) == {'A': ['50.0 ± 0.0']}


def test_a_run_without_the_metric_is_named_and_the_rest_stands(make, evaluate, tmp_path):
    whole, part = make('A', 0), make('A', 1, without=('test_f1',))
    other, alone = make('B', 0, without=('test_f1',)), make('C', 0, splits=('test', 'val'))
    flags = ['--metrics', 'e_recall@1', 'f1']
    code, out, error = evaluate(*flags, '--figures', tmp_path / 'f', '--figure_metrics', 'f1', '--baseline', 'A')
    found, f1 = cells(out), column_of(whole, 'test_f1')[-1]
    assert code == 0 and error.count('\n') == 2
    for folder in (part, other):
        sentence = f'no value: {folder}: it has no test_f1 in epoch 4; its metrics: '
        assert f'Note: {sentence}' in error and f'- {sentence}' in out
    assert found['A'][2].strip('*') == f'{100 * f1:.1f}{"**" * found["A"][2].startswith("**")} (n = 1)'
    assert found['B'][2:] == ['–', ''] and 'left out' not in out
    assert found['C'][2].strip('*').startswith(f'{100 * column_of(alone, "test_f1")[-1]:.1f}')
    assert found['A'][0].strip('*') == expected([column_of(folder, 'test_e_recall@1')[-1] for folder in (whole, part)],
                                                percent=True)
    assert (tmp_path / 'f' / 'cub200_curves_test_f1.png').exists()
    code, out, error = evaluate(*flags, '--select', 'best_val')
    assert code == 0 and list(cells(out)) == ['A', 'B', 'C'] and cells(out)['A'] == ['–', '–']
    assert error.count(': --select best_val needs val_e_recall@1, which it does not have') == 3


def test_a_folder_that_lacks_the_settings_or_splits_of_its_run_is_named(make, evaluate, tmp_path):
    make('A', 0)
    no_settings, no_splits, neither = (make('A', seed) for seed in (1, 2, 3))
    (no_settings / 'config.yaml').unlink()
    (no_splits / 'splits.yaml').unlink()
    (neither / 'config.yaml').unlink()
    (neither / 'splits.yaml').unlink()
    code, out, error = evaluate()
    assert code == 0 and len(error.splitlines()) == 3 and '±' not in cells(out)['A'][0]
    for folder, missing in ((no_settings, 'no config.yaml'), (no_splits, 'no splits.yaml'),
                            (neither, 'no config.yaml and no splits.yaml')):
        assert f'Note: {folder}: left out: it has files of a run, but {missing}; copy it again' in error
    assert evaluate('--exclude', 'A_s1', 'A_s2', 'A_s3')[2] == ''


def test_runs_on_different_test_sets_have_no_mean_and_no_common_row(make, evaluate, tmp_path):
    """Also in the order of a script, from files of --rows, and in --compare."""
    folders = [make('A', seed, test='1' * 16) for seed in (0, 1)]
    folders += [make('A', seed, name=f'again_{seed}', test='2' * 16) for seed in (0, 2)]
    make('B', 0, test='2' * 16)
    make('C', 0)                                                                    # not recorded
    (tmp_path / 'runs.sh').write_text(''.join(f'python main.py --dataset cub200 --group {name} --seed {seed}\n'
                                              for name, seed in ('A0', 'A1', 'A2', 'B0', 'C0', 'D0')))
    script = ['--metrics', 'nmi', '--script', tmp_path / 'runs.sh']
    code, out, _ = evaluate(*script, '--rows', tmp_path / 'r.csv')
    values = [column_of(folder, 'test_nmi')[-1] for folder in folders]
    found = [cells_on(f'CUB200-2011 (test set {test})', out) for test in ('1111111', '2222222', 'unknown')]
    assert code == 0 and 'cub200: different test sets, listed separately' in out
    assert [list(rows) for rows in found] == [['A', 'D'], ['A', 'B'], ['C']]
    for rows, pair in zip(found, (values[:2], values[2:]), strict=False):
        assert rows['A'][0].replace('**', '') == f'{expected(pair, percent=True)} (n = 2)'
    again = evaluate(*script, source=['--runs', str(tmp_path / 'r.csv')])
    assert again[0] == 0 and again[1].strip() == out.partition('rows: ')[0].strip()
    code, out, _ = evaluate('--only', 'A_s', 'C', '--metrics', 'nmi')
    assert '- cub200: the test set is not recorded for C_s0; it is taken to be the same as for the' in out
    (tmp_path / 'new.csv').write_text((tmp_path / 'r.csv').read_text().replace('1' * 16, '3' * 16))
    code, out, _ = evaluate('--compare', tmp_path / 'r.csv', tmp_path / 'new.csv', source=['--metrics', 'nmi'])
    assert code == 0 and '3 differences, 0 of them' in out
    assert '| CUB200-2011 (test set 2222222) | A | NMI |' in out and '(test set 1111111) |' not in out
    assert 'Only in the new file: A on CUB200-2011 (test set 3333333).' in out
    make('A', 0, name='twice', test='2' * 16)
    code, _, error = evaluate()
    assert code == 2 and 'group A: seed 0 occurs twice' in error


def test_runs_with_other_views_or_other_images_of_the_same_classes_have_no_common_row(make, evaluate, tmp_path):
    for group, seed, images in (('A', 0, '2' * 16), ('A', 1, '2' * 16), ('B', 0, '3' * 16)):
        folder = make(group, seed, test='1' * 16)
        config = run_folder.read(folder)
        run_folder.write_yaml(folder / 'config.yaml', config | {'test_images_hash': images})
    code, out, _ = evaluate('--rows', tmp_path / 'r.csv')
    rows = [cells_on(f'CUB200-2011 (test set {test})', out) for test in ('2222222', '3333333')]
    assert code == 0 and [list(found) for found in rows] == [['A'], ['B']] and '±' in rows[0]['A'][0]
    assert {run.test for run in final_rows.read(tmp_path / 'r.csv')} == {'1' * 16}                # as recorded
    make('A', 2, test='1' * 16, eval_views=['0.8', 'flip'])
    code, out, _ = evaluate('--only', 'A')
    assert code == 0 and '- cub200: different --eval_views, listed separately' in out
    assert '| CUB200-2011 | A |' in out and '| CUB200-2011 (views 0.8 flip) | A |' in out
    assert '(views' not in evaluate('--only', 'A_s2')[1]
    folder = make('A', 1, name='A_views', test='1' * 16, eval_views=['0.8', 'flip'])            # a seed with both
    run_folder.write_yaml(folder / 'config.yaml', run_folder.read(folder) | {'test_images_hash': '2' * 16})
    for flags in ([], ['--all_epochs']):
        out = evaluate('--only', 'A', '--rows', tmp_path / 'r.csv', *flags)[1].partition('rows: ')[0]
        assert evaluate(source=['--runs', str(tmp_path / 'r.csv')])[1].strip() == out.strip() and '(views' in out


@pytest.mark.parametrize('name', ['log.csv', 'summary.json'])
def test_records_that_cannot_be_read_are_a_sentence(name, make, evaluate):
    file = make('A', 0) / name
    file.unlink()
    file.mkdir()
    code, _, error = evaluate()
    assert code == 2 and f'{file}: ' in error and 'Is a directory' in error and len(error.splitlines()) == 1
    file.rmdir()
    file.write_text(f'epoch\n{"1" * 131_073}\n')
    code, _, error = evaluate()
    assert code == 2 and f'{file}: ' in error and len(error.splitlines()) == 1


def test_groups_that_cannot_be_averaged(make, evaluate, tmp_path):
    assert 'there is no such folder' in evaluate()[2]
    (tmp_path / 'runs').mkdir()
    assert evaluate()[0] == 2 and 'there are no run folders in it' in evaluate(source=['--runs', str(tmp_path)])[2]
    make('A', 0)
    make('A', 1, dataset='cars196')
    code, out, _ = evaluate('--metrics', 'nmi')
    rows = [cells_on(title, out)['A'] for title in ('CUB200-2011', 'CARS196')]          # a row for each data set
    assert code == 0 and [len(row) for row in rows] == [1, 1] and '–' not in sum(rows, [])
    make('A', 0, name='again')
    code, _, error = evaluate('--datasets', 'cub200')
    assert code == 2 and 'group A: seed 0 occurs twice' in error
    folder = make('A', 0, name='A_s0_1')                       # as main.py names a second run
    for first in (tmp_path / 'runs' / 'cub200' / 'A_s0', f'{tmp_path}/runs/cub200/A_s0/'):
        out = evaluate('--datasets', 'cub200', '--exclude', first, 'again', '--rows', tmp_path / 'r.csv')[1]
        assert f'| A | {100 * column_of(folder, "test_e_recall@1")[-1]:.1f} |' in out
    make('B', 0, finished=False, reached=1)
    assert 'no run is left for the table:\n  B_s0: unfinished: 1 of 4 epochs' in evaluate('--only', 'B')[2]
    folder = make('C', 0)
    text = (folder / 'log.csv').read_text()
    (folder / 'log.csv').write_text(text.replace(str(column_of(folder, 'test_nmi')[-1]), 'nan'))
    code, _, error = evaluate('--only', 'C_')
    assert code == 2 and f'{folder}: test_nmi is not a number in epoch 4' in error
