"""Result_Evaluations.py --published, on run folders that lie inside, outside, and under another protocol."""
import csv
import math
import re

import numpy as np
import pandas
import pytest
from scipy import stats

from reports import papers
from tests.reports.printed import cells

ROTH = {'arch': 'resnet50_frozen_normalize', 'embed_dim': 128, 'bs': 112, 'n_epochs': 150}
MOHAN = {'arch': 'bninception_normalize', 'embed_dim': 64, 'bs': 128, 'n_epochs': 4}
MLRC = {'arch': 'bninception_frozen_normalize', 'embed_dim': 128, 'bs': 32, 'n_epochs': 4, 'split_scheme': 'mlrc'}
R1, RHO, VALIDATED = 'test_e_recall@1', 'train_rho_spectrum@2', 'val_map_at_r'


@pytest.fixture
def roth(make):
    """roth(group, [best R@1 of each seed], ...): runs whose test R@1 is best in epoch 1, where rho is .25."""
    def write(group, values, **given):
        for seed, value in enumerate(values):
            columns = {R1: [.1, value, *[value - .02] * 149], RHO: [.9, .25, *[.5] * 149]}
            make(group, seed, values=columns, **ROTH | given)
    return write


def test_the_files_name_lines_of_the_run_scripts():
    from launching import plan, script
    root = papers.FOLDER.parents[1]
    scripts = {'roth2020': 'Revisit_Runs.sh', 'musgrave2020': 'run_scripts/Reality_Check_Runs.sh',
               'mohan2020': 'run_scripts/Direction_Runs.sh'}
    assert set(scripts) == set(papers.PAPERS) == {path.stem for path in papers.FOLDER.glob('*.csv')}
    n_lines = {}
    for paper, name in scripts.items():
        commands = script.commands(root / name)
        commands = {line[line.index('--group') + 1].partition('_fold')[0]: line for line in commands}
        lines = pandas.DataFrame(papers.read(paper))
        n_lines[paper] = len(lines)
        assert set(lines.group) <= commands.keys()
        assert set(lines.exact) <= {'exact', 'approximate'} and not lines.duplicated(['group', 'column']).any()
        flags = [f'--{flag}' for flag in papers.SHARED]
        lines_by_flags = {tuple(word for word in commands[group] if word in flags): commands[group]
                          for group in set(lines.group)}
        for line in lines_by_flags.values():
            settings = plan.planned_run(line).settings
            assert {flag: settings[flag] for flag in papers.SHARED} == papers.SHARED
    assert n_lines == {'roth2020': 2 * 67, 'musgrave2020': 14 * 7, 'mohan2020': 6 * 4}


def test_the_values_that_the_page_expects_are_those_of_the_files():
    page = (papers.FOLDER.parents[1] / 'docs' / 'reproducing.md').read_text()
    lines = pandas.DataFrame([*papers.read('roth2020'), *papers.read('mohan2020')])
    expected = re.findall(r'^\| (CUB_\w+)[^|]* \| ([\d.]+)(?: ± ([\d.]+))? \|', page, re.M)
    assert len(expected) == 6
    for group, value, std in expected:
        paper = 'roth2020' if std else 'mohan2020'
        line, = lines[(lines.group == group) & (lines.column == R1) & (lines.paper == paper)].itertuples()
        assert line.value == float(value) and (not std or line.population_std == float(std))


def test_runs_inside_and_outside_of_the_published_interval(roth, make, evaluate, tmp_path):
    inside, outside = [.621, .624, .628], [.60, .605, .61]                         # published: 62.50 ± .24, 62.80 ± .70
    roth('CUB_Margin_b06_Distance', inside)
    roth('CUB_MS', outside)
    roth('CUB_Softmax', [.62])                                                      # one seed; published: 61.66 ± .33
    roth('CUB_Mine', [.5])
    make('CUB_Mine', 0, 'cars196')
    outputs = ['--latex', tmp_path / 't.tex', '--csv', tmp_path / 't.csv', '--markdown', tmp_path / 't.md']
    code, out, _ = evaluate('--published', 'roth2020', '--digits', 2, *outputs)
    found, latex = cells(out), (tmp_path / 't.tex').read_text()
    assert code == 0 and 'at the epoch of the best test R@1, as published' in out
    *values, difference = found['CUB Margin b06 Distance R@1']
    assert values == ['62.50 ± 0.24', '62.43 ± 0.35', '3'] and '≠' not in difference
    assert found['CUB Margin b06 Distance train rho@2'][:3] == ['0.3100', '0.2500 ± 0.0000', '3']
    *_, difference = found['CUB MS R@1']
    assert difference.endswith('≠') and difference.startswith('-2.30 ± ')
    assert r'62.50 $\pm$ 0.24' in latex and r'$\neq$' in latex and 'CUB Mine' not in out
    with open(tmp_path / 't.csv', newline='') as file:
        rows = {(row['group'], row['column']): row for row in csv.DictReader(file)}
    for group, values, mean, std in (('CUB_Margin_b06_Distance', inside, .6250, .0024),
                                     ('CUB_MS', outside, .6280, .0070)):
        sample = std * math.sqrt(5 / 4)                                           # the published deviation divides by n
        welch = stats.ttest_ind_from_stats(np.mean(values), np.std(values, ddof=1), 3, mean, sample, 5, equal_var=False)
        row = rows[group, R1]
        difference, half = float(row['difference']), float(row['interval'])
        assert difference == pytest.approx(np.mean(values) - mean)
        freedom = welch_freedom(np.std(values, ddof=1), 3, sample, 5)
        assert half == pytest.approx(stats.t.ppf(.975, freedom) * difference / welch.statistic)
        assert (abs(difference) > half) == (welch.pvalue < .05)
    row = rows['CUB_Softmax', R1]
    assert float(row['interval']) == pytest.approx(stats.t.ppf(.975, 4) * .0033 * math.sqrt(5 / 4) * math.sqrt(6 / 5))


def welch_freedom(one, n, other, m):
    a, b = one ** 2 / n, other ** 2 / m
    return (a + b) ** 2 / (a ** 2 / (n - 1) + b ** 2 / (m - 1))


@pytest.mark.parametrize('flags, reason', [
    ({'arch': 'resnet50_frozen'}, 'arch resnet50_frozen, published resnet50_frozen_normalize'),
    ({'n_epochs': 100}, 'n_epochs 100, published 150'), ({'split_scheme': 'class_folds'}, 'published half'),
    ({'eval_views': ['0.8', 'flip']}, 'published []'),
    ({'bs': 80, 'embed_dim': 64}, 'embed_dim 64, published 128; bs 80, published 112'),
    ({'reached': 80}, 'epoch 80 reached, published 150')])
def test_a_run_under_another_protocol_has_the_reason_in_its_place(flags, reason, roth, evaluate, tmp_path):
    roth('CUB_MS', [.6], **flags)
    code, out, _ = evaluate('--published', 'roth2020', '--csv', tmp_path / 't.csv')
    row = cells(out)['CUB MS R@1']
    assert code == 0 and row[:3] == ['62.8 ± 0.7', '60.0', '1'] and cells(out)['CUB MS train rho@2'][1] == '0.250'
    assert reason in row[3]
    with open(tmp_path / 't.csv', newline='') as file:
        assert all(row['difference'] == row['interval'] == '' for row in csv.DictReader(file))


def test_a_metric_that_a_run_does_not_have_is_not_compared(make, evaluate):
    make('CUB_MS', 0, **ROTH)
    code, out, _ = evaluate('--published', 'roth2020')
    rho = cells(out)['CUB MS train rho@2']
    assert code == 0 and cells(out)['CUB MS R@1'][1] != '–'
    assert rho == ['0.155', '–', '0', f'CUB_MS_s0 has no value of {RHO} at the selected epoch']
    make('CUB_MS', 1, **ROTH, values={RHO: [.5] * 151})
    make('CUB_MS', 2, **ROTH, values={RHO: [math.nan] * 151})
    rho = cells(evaluate('--published', 'roth2020')[1])['CUB MS train rho@2']
    reasons = '; '.join(f'CUB_MS_s{seed} has no value of {RHO} at the selected epoch' for seed in (0, 2))
    assert rho[1:] == ['0.500', '1', reasons]


def test_the_mean_over_folds_at_the_best_validation_epoch(make, evaluate, tmp_path):
    for fold in range(4):
        for seed in range(2):
            make(f'CUB_Triplet_fold{fold}', seed, splits=('val',), fold=fold, **MLRC, values={
                VALIDATED: [.1, .2, .42 + .01 * fold + .002 * seed, .3, .2]})
    make('CUB_ArcFace_fold0', 0, splits=('val',), fold=0, **MLRC | {'embed_dim': 64})
    code, out, _ = evaluate('--published', 'musgrave2020', 'mohan2020', '--digits', 2, '--csv', tmp_path / 't.csv')
    found = cells(out)
    assert code == 0 and 'at the epoch of the best validation MAP@R, mean over folds, as published' in out
    validation, test = found['CUB Triplet val MAP@R'], found['CUB Triplet MAP@R']
    assert validation[:2] == ['42.44', '43.60 ± 0.14'] and validation[3].startswith('+1.16 ± 1.27')
    assert test[:3] == ['≈ 23.70', '–', '0'] and test[3].startswith('published embed_dim not stated; ')
    assert found['CUB ArcFace val MAP@R'][3] == 'embed_dim 64, published 128; seed 0: 1 of 4 folds'
    assert found['CUB ArcFace MAP@R'][1] == '–'                                    # never validation beside test


def test_papers_with_one_name_for_different_runs(roth, make, evaluate):
    roth('CUB_MS', [.62])
    make('CUB_DR_Triplet', 0, values={R1: [.5, .56, .55, .5, .4], 'test_e_recall@2': [.6, .6, .7, .8, .9]}, **MOHAN)
    code, out, _ = evaluate('--published', 'roth2020', 'mohan2020')
    assert code == 0 and ('MS R@1 | 57.4 | 62.0 | 1 | arch resnet50_frozen_normalize, published bninception_normalize; '
                          'embed_dim 128, published 64') in out
    rows = cells(out)
    assert rows['CUB DR Triplet R@1'] == ['54.5', '56.0', '1', '+1.5']
    assert rows['CUB DR Triplet R@2'] == ['66.2', '60.0', '1', '-6.2']                        # at the best R@1, epoch 1


def test_a_group_on_two_test_sets_has_a_row_for_each(roth, make, evaluate, tmp_path):
    roth('CUB_MS', [.61, .62], test='1' * 16)
    make('CUB_MS', 0, name='again', test='2' * 16, values={R1: [.7] * 151, RHO: [.5] * 151}, **ROTH)
    code, out, _ = evaluate('--published', 'roth2020', '--csv', tmp_path / 't.csv')
    assert code == 0
    for ours in ('61.5 ± 0.7 | 2', '70.0 | 1'):
        assert f'| CUB MS R@1 | 62.8 ± 0.7 | {ours} |' in out
    for test in '12':
        assert f'CUB200-2011 (test set {7 * test}). Published: ' in out
        assert f',cub200@{16 * test},' in (tmp_path / 't.csv').read_text()


@pytest.mark.parametrize('arguments, sentence', [
    (['--metrics', 'nmi', '--select', 'best_test'], 'leave out --metrics, --select'),
    (['--figures', 'f'], 'leave out --figures'),
    (['--only', 'Mine'], 'no group has a published value'), (['--published', 'x'], "invalid choice: 'x'")])
def test_what_the_user_must_change(arguments, sentence, roth, evaluate):
    roth('CUB_Mine', [.5])
    code, out, error = evaluate('--published', 'roth2020', *arguments)
    assert code == 2 and sentence in error and not out
