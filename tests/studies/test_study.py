"""Result_Evaluations.py --study: the numbers of the page against scipy and numpy, and what it says of missing runs."""
import copy
import csv
import itertools
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

import Result_Evaluations
from launching import script
from records.reading import Run
from reports import final_rows, groups, selection
from studies import figures, study
from studies import page as study_page

ROOT = Path(__file__).parents[2]
METRICS = ('e_recall@1', 'map_at_r', 'nmi', 'rho_spectrum@1', 'dists@intra_over_inter')
LOSSES = ['contrastive_distance', 'DR_MS', 'MS', 'triplet_distance', 'contrastive_rho_distance', 'triplet_rho_distance']
GROUPS = [f'Omniglot_{name}' for name in (*LOSSES, 'MS_class_random', 'MS_balanced', 'triplet_semihard',
                                          'margin_semihard', 'margin_hard', 'triplet_hard', 'DR_MS_gamma0',
                                          'Untrained_none')]
SEEDS = (0, 1, 2, 3)
VARIABLES = ('DATA', 'SECTIONS', 'SEEDS', 'MINERS')                  # of the environment, which the script reads


@pytest.fixture(scope='module')
def listed():
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        return Result_Evaluations.listed_by_study()


@pytest.fixture(autouse=True)
def environment(monkeypatch, listed):
    """The script is read once, which takes half a second."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Result_Evaluations, 'listed_by_study', lambda: copy.deepcopy(listed))


@pytest.fixture
def rows(listed, tmp_path):
    """rows(groups): a file of --rows --all_epochs of these groups, and {group: {seed: [{metric: value} by epoch]}}."""
    def write(groups=GROUPS, seeds=SEEDS, name='study.csv'):
        random, lines, numbers = np.random.default_rng(0), [], {}
        commands = {(line[line.index('--group') + 1], int(line[-1])): line for part in listed.values() for line in part}
        for group, seed in itertools.product(groups, seeds):
            n_epochs = 0 if 'none' in group else 3
            level = np.random.default_rng(len(group) + sum(map(ord, group))).uniform(.5, .8)
            epochs = [{metric: float(random.normal(level - .02 * (epoch == 3) - .1 * index, .01))
                       for index, metric in enumerate(METRICS)} for epoch in range(n_epochs + 1)]
            numbers.setdefault(group, {})[seed] = epochs
            for epoch, values in enumerate(epochs):
                names = METRICS if epoch == n_epochs else METRICS[:2]
                lines.append({'dataset': 'omniglot', 'group': group, 'seed': seed, 'epoch': epoch}
                             | {f'test_{metric}': repr(values[metric]) for metric in names})
            line = shlex.join(commands.get((group, seed), [])).replace('Datasets', '/home/x/data')
            lines[-1] |= {'command': f'python main.py {line} --save_path /tmp/r --device cpu', 'git_commit': 'abc',
                          'versions': json.dumps({'python': '3.11.7', 'torch': '2.14.1'})}
        return written(tmp_path / name, lines), numbers
    return write


def written(file, lines):
    names = list(dict.fromkeys(name for line in lines for name in line))
    with open(file, 'w', newline='') as opened:
        writer = csv.DictWriter(opened, names, restval='')
        writer.writeheader()
        writer.writerows(lines)
    return file


@pytest.fixture
def folds(tmp_path):
    """A file of Evaluate_Ensemble.py --rows, and {(form, group): [R@1 of each seed]}."""
    random, lines, numbers = np.random.default_rng(1), [], {}
    for rank, name in enumerate(LOSSES[:5]):
        for seed in SEEDS:
            line = {'dataset': 'omniglot', 'group': f'Omniglot_{name}', 'seed': seed, 'command':
                    f'python main.py --config S/base.yaml --lr=0.00512345 --loss_x=0.25 --fold=0 --seed={seed}'}
            for form in ('separated', 'concatenated'):
                value = float(random.normal(.4 + .03 * rank + .1 * (form == 'concatenated'), .01))
                numbers.setdefault((form, name), []).append(value)
                line |= {f'{form}_test_e_recall@1': repr(value), f'{form}_test_map_at_r': repr(value / 2)}
            lines.append(line)
    return written(tmp_path / 'folds.csv', lines), numbers


@pytest.fixture
def page_of(tmp_path, capsys, monkeypatch):
    """page_of(file, ...): the page of a file of --rows, without its figures."""
    monkeypatch.setattr(figures, 'draw', lambda *arguments: [])

    def write(*arguments):
        code = Result_Evaluations.main(['--runs', *map(str, arguments), '--study', str(tmp_path / 'results.md')])
        assert code == 0, capsys.readouterr().err
        return (tmp_path / 'results.md').read_text()
    return write


def table(page, heading):
    """{first cell: {heading: cell}} of the first table below a heading."""
    lines = itertools.dropwhile(lambda line: not line.startswith('|'), page.partition(f'{heading}\n')[2].splitlines())
    heads, _, *body = [[cell.strip() for cell in line.split('|')[1:-1]]
                       for line in itertools.takewhile(lambda line: line.startswith('|'), lines)]
    return {row[0]: dict(zip(heads, row, strict=True)) for row in body}


def last(numbers, name, metric='e_recall@1'):
    return [epochs[-1][metric] for epochs in numbers[f'Omniglot_{name}'].values()]


def with_half(values, sign=''):
    half = stats.t.ppf(.975, len(values) - 1) * stats.sem(values)
    return f'{100 * np.mean(values):{sign}.1f} ± {100 * half:.1f}'


def holm(p_values):
    order, so_far, found = np.argsort(p_values), 0, {}
    for rank, index in enumerate(order):
        so_far = max(so_far, min(1, p_values[index] * (len(p_values) - rank)))
        found[int(index)] = so_far
    return [found[index] for index in range(len(p_values))]


def p_text(p):
    return '< 0.001' if p < .001 else f'{p:.3f}'


def test_the_page_in_the_documentation_is_that_of_the_committed_rows(page_of):
    file, of_folds = (ROOT / 'studies' / 'rows' / f'{name}.csv' for name in ('study', 'folds'))
    if not file.exists():
        pytest.skip('studies/rows/study.csv is not there yet')
    page = page_of(file, *(['--folds', of_folds] if of_folds.exists() else []))
    assert page == (ROOT / 'docs' / 'results.md').read_text(encoding='utf-8')
    assert all((ROOT / 'docs' / name).is_file() for name in re.findall(r'!\[.*\]\((.*)\)', page))


def rows_page(file, listed):
    return '\n'.join(study_page.rows_of(study.gather(final_rows.read(file), listed), 'results'))


def test_the_table_of_a_section(rows, listed):
    file, numbers = rows()
    cells = table(rows_page(file, listed), '#### Losses, Omniglot')
    assert list(cells) == [f'[{name}](#{name.casefold()})' for name in LOSSES]              # in the order of the script
    untrained, extended = last(numbers, 'Untrained_none'), {
        'DR_MS': 'DR_MS_gamma0', 'contrastive_rho_distance': 'contrastive_distance',
        'triplet_rho_distance': 'triplet_distance'}
    p_values = dict(zip(extended, holm([stats.ttest_rel(last(numbers, one), last(numbers, other)).pvalue
                                        for one, other in extended.items()]), strict=True))
    highest = max(LOSSES, key=lambda name: np.mean(last(numbers, name)))
    for name in LOSSES:
        row, recall = cells[f'[{name}](#{name.casefold()})'], last(numbers, name)
        best = [max(epoch['e_recall@1'] for epoch in epochs) for epochs in numbers[f'Omniglot_{name}'].values()]
        assert row['R@1'] == (f'**{with_half(recall)}**' if name == highest else with_half(recall))
        assert row['seeds'] == '4' and row['best epoch'] == f'{100 * np.mean(best):.1f}'
        assert row['gap'] == f'{100 * (np.mean(best) - np.mean(recall)):.1f}' and np.mean(best) > np.mean(recall)
        assert [row['MAP@R'], row['NMI']] == [with_half(last(numbers, name, one)) for one in ('map_at_r', 'nmi')]
        assert row['rho@1'] == f'{np.mean(last(numbers, name, "rho_spectrum@1")):.3f}'
        assert row['intra/inter'] == f'{np.mean(last(numbers, name, "dists@intra_over_inter")):.3f}'
        assert row['Δ to Untrained_none'] == with_half(np.subtract(recall, untrained), '+')
        assert row['extends'] == extended.get(name, '')
        if name in extended:
            assert row['Δ to it'] == with_half(np.subtract(recall, last(numbers, extended[name])), '+')
            assert row['p'] == p_text(p_values[name])
        else:
            assert row['Δ to it'] == row['p'] == ''


def test_the_answers_on_losses(rows, page_of):
    file, numbers = rows()
    page = page_of(file)
    samples = [last(numbers, name) for name in LOSSES]
    f = stats.f_oneway(*samples).statistic
    p_values = holm([stats.ttest_ind(one, other, equal_var=False).pvalue
                     for one, other in itertools.combinations(samples, 2)])
    line, = [line for line in page.splitlines() if line.startswith('- Omniglot, 6 losses')]
    assert f'between losses, is {(f - 1) / (f + len(SEEDS) - 1):.2f} (95 % interval' in line
    assert f'p {p_text(stats.kruskal(*samples).pvalue)}' in line.replace('p = ', 'p ')
    assert f'{sum(p < .05 for p in p_values)} of 15 pairs' in line
    assert f'over seeds is {100 * np.median([np.std(values, ddof=1) for values in samples]):.1f} in the median' in line
    rows_of = [line.split(' | ') for line in page.splitlines() if line.startswith('| Omniglot | ')]
    assert len(rows_of) == 6
    tests = {'Pearson': stats.pearsonr, 'Spearman': stats.spearmanr}
    metrics = {'NMI': 'nmi', 'rho@1': 'rho_spectrum@1', 'intra/inter': 'dists@intra_over_inter'}
    found = [tests[kind]([np.mean(last(numbers, name, metrics[metric])) for name in LOSSES],
                         [np.mean(values) for values in samples]) for _, metric, _, kind, *_ in rows_of]
    for row, one, p in zip(rows_of, found, holm([one.pvalue for one in found]), strict=True):
        assert row[4] == f'{one.statistic:.2f}' and row[6] == f'{p_text(p)} |'


def test_the_answers_on_differences(rows, page_of):
    file, numbers = rows()
    page = page_of(file)
    pairs = {name: np.subtract(last(numbers, name), last(numbers, name.replace('_rho', '')))
             for name in ('contrastive_rho_distance', 'triplet_rho_distance')}
    cells = table(page, '### How much do ρ-regularisation, direction regularisation and batch samplers change R@1?')
    assert {name: row['Δ R@1'] for name, row in cells.items()} == {
        name: with_half(values, '+') for name, values in pairs.items()}
    mean = np.mean(list(pairs.values()), axis=0)
    p = p_text(stats.ttest_1samp(mean, 0).pvalue)
    assert f'The mean over these 2 losses is {with_half(mean, "+")} (p {p}, n = 4 seeds)' in page.replace('p = ', 'p ')
    sampled = with_half(np.subtract(last(numbers, 'MS_balanced'), last(numbers, 'MS_class_random')), '+')
    directed = with_half(np.subtract(last(numbers, 'DR_MS'), last(numbers, 'DR_MS_gamma0')), '+')
    assert f'| DR_MS | DR_MS_gamma0 | 4 | {directed} |' in page
    assert f'| MS_balanced | MS_class_random | 4 | {sampled} |' in page
    trained = [name.removeprefix('Omniglot_') for name in GROUPS if 'none' not in name]
    differences = [np.subtract(last(numbers, name), last(numbers, 'Untrained_none')) for name in trained]
    corrected = holm([stats.ttest_1samp(values, 0).pvalue for values in differences])
    better = sum(p < .05 and values.mean() > 0 for p, values in zip(corrected, differences, strict=True))
    worse = sum(p < .05 and values.mean() < 0 for p, values in zip(corrected, differences, strict=True))
    assert (f'- Omniglot: {better} of 13 methods have a significantly higher R@1 than Untrained_none '
            f'({with_half(last(numbers, "Untrained_none"))}), and {worse} a significantly lower R@1 (paired '
            't-test over seeds, n = 4 seeds, p < 0.05 after') in page
    assert f'methods is {100 * np.mean(differences):+.1f} points' in page
    gaps = {name: np.mean([max(epoch['e_recall@1'] for epoch in epochs) - epochs[-1]['e_recall@1']
                           for epochs in numbers[f'Omniglot_{name}'].values()]) for name in trained}
    largest = max(gaps, key=gaps.get)
    assert (f'by {100 * np.mean(list(gaps.values())):.1f} points in the mean over 13 methods, and by at most '
            f'{100 * gaps[largest]:.1f} ({largest})') in page
    miners = table(page, '### Does the best miner depend on the loss?')
    assert set(miners) == {'distance', 'rho_distance', 'semihard', 'hard'} and miners['distance']['margin'] == ''
    for name, loss in itertools.product(('semihard', 'hard'), ('triplet', 'margin')):
        assert miners[name][loss].strip('*') == with_half(last(numbers, f'{loss}_{name}'))


def test_the_second_protocol(rows, folds, page_of):
    (file, numbers), (of_folds, tuned) = rows(), folds
    page = page_of(file, '--folds', of_folds)
    cells = table(page, '## Protocol 2: tuned on folds')
    assert list(cells) == LOSSES[:5]
    for name, row in cells.items():
        one, other = tuned['separated', name], tuned['concatenated', name]
        assert row['protocol 1, R@1'] == with_half(last(numbers, name))
        assert row['separated, R@1'] == with_half(one) and row['concatenated, R@1'] == with_half(other)
        assert row['concatenated, MAP@R'] == with_half(np.divide(other, 2))
        assert row['Δ R@1'] == with_half(np.subtract(other, one), '+')
        assert row['best setting'] == '`--lr 0.00512 --loss_x 0.25`'
    for form in ('separated', 'concatenated'):
        values = [[np.mean(last(numbers, name)) for name in cells], [np.mean(tuned[form, name]) for name in cells]]
        line, = [line for line in page.splitlines() if line.startswith(f'- {form.capitalize()} networks')]
        assert f'Spearman {stats.spearmanr(*values).statistic:.2f} ' in line
        assert f'Kendall {stats.kendalltau(*values).statistic:.2f} ' in line
    mean = np.mean([np.subtract(tuned['concatenated', name], tuned['separated', name]) for name in cells], axis=0)
    assert f'between concatenated and separated networks is {with_half(mean, "+")} points' in page


def test_a_method_has_its_numbers_its_curve_and_its_command(rows, page_of, listed):
    file, numbers = rows()
    page = rows_page(file, listed)
    part = page.partition('\n### DR_MS\n')[2].partition('\n### ')[0]
    assert f'R@1 {with_half(last(numbers, "DR_MS"))}, MAP@R' in part
    curve = np.mean([[epoch['e_recall@1'] for epoch in epochs]
                     for epochs in numbers['Omniglot_DR_MS'].values()], axis=0)
    assert f'R@1 after each epoch: {", ".join(f"{100 * value:.1f}" for value in curve)}\n' in part
    command, = re.findall('```bash\n(.*)\n```', part)
    commands = [shlex.join(['python', 'main.py', *line]).replace(' --kernels 0 --image_cache Datasets/cache', '')
                for line in script.commands(ROOT / 'studies/Study_Runs.sh')]                     # flags of the machine
    assert command in commands and '--group Omniglot_DR_MS --seed 0' in command
    page += page_of(file)
    assert '/home/x' not in page and 'Commit: `abc`.' in page and 'python 3.11.7, torch 2.14.1' in page


def test_what_is_missing_is_named(rows, page_of):
    file, _ = rows([*GROUPS, 'Omniglot_Unheard'], seeds=(0, 1, 2))
    lines = file.read_text().splitlines()
    file.write_text('\n'.join(line for line in lines if not line.startswith('omniglot,Omniglot_MS,2,')) + '\n')
    page = page_of(file)
    part = page.partition('#### Losses, Omniglot\n')[2].partition('![')[0]
    assert '6 methods, 17 runs.' in part and 'Not run: seeds 2, 3 and 4 of MS.' in part
    assert 'Not run: seeds 3 and 4 of ' in part and 'triplet_distance' in part and 'Angular, ArcFace, ' in part
    assert 'Not run: all 8 methods.' in page.partition('### Losses on photos')[2]
    assert '- Omniglot_Unheard: not in studies/Study_Runs.sh; its runs are left out' in page
    assert 'The searches have not been run.' in page
    page = page_of(rows(['Omniglot_MS'], seeds=(0,), name='one.csv')[0])
    assert '1 run of 1 method on Omniglot' in page and '1 method, 1 run. Not run: seeds 1, 2, 3 and 4 of MS.' in page
    assert 'Omniglot: no runs of Untrained_none.' in page and 'correlations.png' not in page


@pytest.mark.parametrize(('arguments', 'sentence'), [
    (['--study', 'page.txt'], 'expected the name of a page that ends with .md'),
    (['--study', 'nowhere/page.md'], 'there is no folder nowhere'),
    (['--study', 'page.md', '--folds', 'no.csv'], '--folds no.csv: no such file'),
    (['--study', 'page.md', '--folds', 'study.csv'], 'not a file that Evaluate_Ensemble.py --rows wrote'),
    (['--study', 'page.md', '--csv', 'table.csv', '--rows', 'rows.csv'], 'leave out --csv and --rows'),
    (['--study', 'page.md', '--with_unfinished', '--select', 'best_test', '--baseline', 'Omniglot_MS', '--seeds', '0'],
     'leave out --seeds, --with_unfinished, --select and --baseline'),
    (['--folds', 'no.csv'], '--folds goes with --study'),
    (['--all_epochs'], '--all_epochs goes with --rows')])
def test_what_the_user_must_change(arguments, sentence, rows, tmp_path, monkeypatch, capsys):
    rows()
    monkeypatch.chdir(tmp_path)
    assert Result_Evaluations.main(['--runs', 'study.csv', *arguments]) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / 'page.md').exists()


def test_rows_of_other_runs_are_refused(rows, tmp_path, capsys):
    file, _ = rows(['Glyphs_MS'])
    assert Result_Evaluations.main(['--runs', str(file), '--study', str(tmp_path / 'page.md')]) == 2
    assert 'none of the runs is in studies/Study_Runs.sh' in capsys.readouterr().err


def test_the_sections_are_those_of_the_script(listed):
    def groups(commands):
        return {line[line.index('--group') + 1] for line in commands}

    assert set().union(*map(groups, listed.values())) == groups(script.commands(ROOT / 'studies/Study_Runs.sh'))


def test_what_a_method_extends(listed):
    groups = {line[line.index('--group') + 1] for commands in listed.values() for line in commands}
    whole = study.gather([Run(group, '', {'dataset': 'd', 'group': group, 'seed': 0}, [{'epoch': 1}])
                          for group in groups], listed)
    expected = {'Omniglot_MS_max': 'MS', 'Grocery_MS_avg_max': 'MS',
                'Omniglot_triplet_distance_all': 'triplet_distance',
                'Omniglot_ProxyAnchor_TCM': 'ProxyAnchor', 'Omniglot_DR_Triplet': 'DR_Triplet_gamma0',
                'Omniglot_DR_Triplet_gamma0': None,
                'Omniglot_triplet_cascade': 'triplet_distance', 'Omniglot_snr_rho_distance': 'snr_distance',
                'Omniglot_triplet_random_distance': None, 'Omniglot_triplet_hard': None, 'Omniglot_MS': None,
                'Omniglot_ProxyNCApp': None, 'Omniglot_NTXent_views': 'NTXent', 'Omniglot_MS_balanced': 'MS'}
    references = {group: whole.reference(whole.methods[group]) for group in expected}
    assert {group: one.name if one else None for group, one in references.items()} == expected


@pytest.mark.parametrize('kind', ['Pearson', 'Spearman', 'Kendall'])
def test_intervals_of_correlations(kind):
    random = np.random.default_rng(0)
    x = random.normal(size=9)
    y = x + random.normal(size=9)
    found, test = study.correlation(x, y, kind), study.TESTS[kind]
    reference = stats.bootstrap((x, y), lambda one, other: test(one, other).statistic, paired=True, vectorized=False,
                                n_resamples=2000, method='percentile', rng=np.random.default_rng(1))
    assert found.value == pytest.approx(test(x, y).statistic) and found.p == pytest.approx(test(x, y).pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(reference.confidence_interval), abs=0.05)
    assert study.correlation([*x, np.inf, 1.], [*y, 1., np.nan], kind) == found        # which 9 points have
    assert np.isnan(study.correlation([1, 2, 3, np.inf], [1, 2, 3, 4], kind).value)


def test_the_interval_of_the_intraclass_correlation_covers_it():
    """Groups whose means and values have the variances 4 and 1: the fraction is 0.8."""
    random, n = np.random.default_rng(0), 400
    inside = sum(low < .8 < high for _ in range(n) for _, low, high in [study.intraclass(
        (2 * random.normal(size=(10, 1)) + random.normal(size=(10, 4))).tolist())])
    assert stats.binomtest(inside, n, .95).pvalue > .01
    unequal = study.intraclass([[1., 2.], [5., 6., 7.], [9., 10.]])
    assert .9 < unequal[0] < 1 and unequal[1] < unequal[0] < unequal[2]


def test_the_figures_that_the_page_names(rows, tmp_path):
    file, _ = rows()
    assert Result_Evaluations.main(['--runs', str(file), '--study', str(tmp_path / 'results.md')]) == 0
    names = re.findall(r'!\[.*\]\((.*)\)', (tmp_path / 'results.md').read_text())
    assert sorted(names) == sorted(f'results/{path.name}' for path in (tmp_path / 'results').iterdir())
    for name in names:
        with Image.open(tmp_path / name) as image:
            assert image.mode == 'P' and len(np.unique(image.convert('L'))) > 5
        assert (tmp_path / name).stat().st_size < 60_000
    assert f'results/{figures.of("losses", "Omniglot", "correlations")}' in names


def test_of_ema_the_averaged_weights_are_reported(tmp_path):
    """Their columns pass through a file of --rows, and the page shows them instead of those of the last weights."""
    rows = [{'epoch': epoch, 'test_e_recall@1': raw, 'ema_test_e_recall@1': averaged, 'test_nmi': raw / 2,
             'ema_test_nmi': averaged / 2} for epoch, raw, averaged in ((0, .2, .2), (1, .6, .7), (2, .5, .4))]
    run = Run('Omniglot_MS_ema_s0', 'nowhere', {'dataset': 'omniglot', 'group': 'Omniglot_MS_ema', 'seed': 0}, rows)
    group = groups.Group('Omniglot_MS_ema', 'omniglot', [run])
    rule = selection.Rule('last', study.Column('test', 'e_recall@1'), False)
    final_rows.write(tmp_path / 'rows.csv', [group], rule, ['test_e_recall@1'])
    method = study.Method('Omniglot_MS_ema', {0: final_rows.read(tmp_path / 'rows.csv')[0]})
    assert method.mean() == .4 and method.mean_at_best() == .7 and method.mean('nmi') == .2
    assert method.has('nmi') and not method.has('map_at_r')
    assert method.curve()[1].tolist() == [[.2], [.7], [.4]]
    plain = study.Method('Omniglot_MS', method.runs)
    assert plain.mean() == .5 and plain.mean_at_best() == .6 and plain.mean('nmi') == .25
