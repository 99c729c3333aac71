"""The answers of the study on photos, from rows as the scripts' runs leave them."""
import csv
from collections import namedtuple

import numpy as np
import pytest
from scipy import stats

from studies import estimates, photos
from tests.helpers import csv_rows
from utilities.errors import UserError

Run = namedtuple('Run', 'rows')
LEVELS = {'Untrained': 9, 'Contrastive': 16, 'Triplet_Distance': 16.2, 'Triplet_Random': 13, 'Margin': 16,
          'Rho_Margin_40': 12, 'MS': 14, 'ProxyAnchor': 17, 'ArcFace': 15, 'DR_Triplet_0': 16, 'DR_Triplet': 16.1}
SIZES = np.array([10, 20, 30])


def write(file, lines):
    with open(file, 'w', newline='') as opened:
        writer = csv.DictWriter(opened, [*lines[0]])
        writer.writeheader()
        writer.writerows(lines)


@pytest.fixture(scope='module')
def rows(tmp_path_factory):
    """A folder with rows of the fine-tuned settings on birds with three seeds each, and none of the frozen features."""
    folder = tmp_path_factory.mktemp('rows')
    random = np.random.default_rng(0)
    lines = []
    classes = []
    for setting, level in LEVELS.items():
        for seed in (2, 3, 4) if setting != 'Untrained' else (2,):
            for epoch in (5, 10, 15):
                value = (level + random.normal(0, .2)) / 100
                lines.append({
                    'dataset': 'folder', 'group': f'Photos_birds_{setting}', 'seed': seed, 'epoch': epoch,
                    'test_map_at_r': value, 'test_e_recall@1': .4 + value, 'val_map_at_r': random.random(),
                    'val_e_recall@1': random.random(), 'train_rho_spectrum@2': .3 - value, 'device': 'AMD EPYC',
                    'seconds': 1800, 'git_commit': '0123456789'})
            parts = value + np.array([.02, 0, -.02])
            classes.append({'group': f'Photos_birds_{setting}', 'seed': seed, 'sizes': ' '.join(map(str, SIZES)),
                            'map_at_r': ' '.join(map(str, parts))})
    write(folder / 'photos.csv', lines)
    write(folder / 'photos_classes.csv', classes)
    return folder


@pytest.fixture(scope='module')
def found(rows):
    return {tier: photos.read(tier, rows) for tier in photos.TIERS}


@pytest.fixture(scope='module')
def values(rows):
    """{setting: points of its seeds at the last epoch}, read from the file."""
    last = [line for line in csv_rows(rows / 'photos.csv') if line['epoch'] == '15']
    return {setting: [100 * float(line['test_map_at_r']) for line in last if line['group'] == f'Photos_birds_{setting}']
            for setting in LEVELS}


def test_one_seed_is_no_answer(tmp_path):
    lines = [{'dataset': 'folder', 'group': f'Photos_birds_{setting}', 'seed': 2, 'epoch': 15, 'test_map_at_r': .1,
              'test_e_recall@1': .4, 'train_rho_spectrum@2': .3} for setting in ('MS', 'ProxyAnchor')]
    write(tmp_path / 'photos.csv', lines)
    found = {tier: photos.read(tier, tmp_path) for tier in photos.TIERS}
    table = photos.answer_table('finetuned', found['finetuned'])
    line = line_of(table, 'Is ProxyAnchor, the best loss of the pilot, better than MS, the worst?')
    assert line[2] == '+0.0 (no interval)' and line[7] == 'too few seeds'
    assert photos.short_table(found) == 'Without an answer: 19 questions of docs/results.md.'


def test_runs_on_other_test_images_have_no_mean(tmp_path):
    lines = [{'dataset': 'folder', 'group': f'Photos_birds_{setting}', 'seed': 2, 'epoch': 15, 'test_map_at_r': .1,
              'test_hash': of_images} for setting, of_images in (('MS', 'a'), ('Margin', 'b'))]
    write(tmp_path / 'photos.csv', lines)
    with pytest.raises(UserError, match='different test sets'):
        photos.read('finetuned', tmp_path)


def line_of(table, title, name='birds'):
    """The cells of the row of a question and a set; the title stands in the first row of a question."""
    asked = ''
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip('|').split(' | ')]
        asked = cells[0] or asked
        if (asked, cells[1]) == (title, name):
            return cells
    raise AssertionError(title)


def test_an_effect_its_interval_and_answer(found, values):
    """Three seeds: the differences of values from the means of settings and of seeds have 18 degrees of freedom."""
    table = photos.answer_table('finetuned', found['finetuned'])
    random = np.array([of for setting, of in values.items() if setting != 'Untrained'])
    rests = random - random.mean(axis=1, keepdims=True) - random.mean(axis=0) + random.mean()
    n_questions = len(table.splitlines()) - 2
    half = stats.t.ppf(1 - .025 / n_questions, 18) * np.sqrt(np.square(rests).sum() / 18 * 2 / 3)
    mean = np.mean(values['Rho_Margin_40']) - np.mean(values['Margin'])
    cells = line_of(table, 'Does rho-regularisation help the margin loss, with probability 0.4?')
    assert cells[2] == f'{mean:+.1f} ({mean - half:.1f} to {mean + half:.1f})'
    assert cells[5:] == ['3', 'less (-3.8)', 'less']
    cells = line_of(table, 'Is training (contrastive) better than untrained features?')
    mean = np.mean(values['Contrastive']) - values['Untrained'][0]
    assert cells[2].startswith(f'{mean:+.1f} (') and cells[7] == 'more'
    assert line_of(table, 'Is training (contrastive) better than untrained features?', 'cars')[2:6] == [''] * 4
    assert line_of(table, 'Is training (contrastive) better than untrained features?', 'cars')[7] == 'not run yet'
    assert line_of(table, 'Is distance-weighted mining better than semihard?')[7] == 'not run yet'


def test_what_is_lost_by_choosing_epochs_on_validation_classes(found, rows):
    lines = [line for line in csv_rows(rows / 'photos.csv') if line['group'].endswith('_MS')]
    expected = []
    for seed in '234':
        epochs = [line for line in lines if line['seed'] == seed]
        chosen = max(epochs, key=lambda line: float(line['val_map_at_r']))
        expected.append(100 * (max(float(line['test_map_at_r']) for line in epochs) - float(chosen['test_map_at_r'])))
    runs, _ = found['finetuned']['birds']
    lost = photos.lost_by_selection(runs, ['MS'], 'map_at_r')['MS']
    assert [lost[2], lost[3], lost[4]] == pytest.approx(expected)


def test_choosing_a_setting_on_validation_classes(found):
    runs, _ = found['finetuned']['birds']
    names = [*LEVELS][1:]
    tested, validated = (photos.points(runs, 'map_at_r', split) for split in ('test', 'val'))
    chosen = max(names, key=lambda name: np.mean([*validated[name].values()]))
    estimate = photos.effect({'setting': names}, runs, 'map_at_r', .95)
    assert estimate.mean == pytest.approx(np.mean([*tested['ProxyAnchor'].values()])
                                          - np.mean([*tested[chosen].values()]))
    assert estimate == estimates.behind_the_best(tested, chosen, names, .95, ['Untrained'])
    best = Run([run | {'val_map_at_r': 9, 'val_e_recall@1': 9} for run in runs['MS'][4].rows])
    more = runs | {'MS': runs['MS'] | {5: best}}
    assert photos.effect({'setting': names}, more, 'map_at_r', .95).mean == estimate.mean


def test_settings_are_compared_over_the_seeds_that_all_of_them_have(found):
    """The variances are those of all runs."""
    runs, classes = found['finetuned']['birds']
    fewer = runs | {'MS': {2: runs['MS'][2], 4: runs['MS'][4], 5: runs['MS'][3]}}
    question = {'one': ['MS'], 'other': ['Margin', 'Untrained']}
    assert photos.common_seeds(question, fewer) == {2, 4}
    assert not photos.common_seeds(question, runs | {'MS': {5: runs['MS'][2]}})
    assert not photos.common_seeds(question | {'one': ['Missing']}, runs)
    tested = photos.points(fewer, 'map_at_r')
    estimate = photos.effect({'one': ['MS'], 'other': ['Margin']}, fewer, 'map_at_r', .95)
    assert estimate.mean == pytest.approx(np.mean([tested['MS'][seed] - tested['Margin'][seed] for seed in (2, 4)]))
    variances = estimates.variances(tested, ['Untrained'])
    assert estimate.half == pytest.approx(stats.t.ppf(.975, variances.freedom) * np.sqrt(variances.residual))
    values = {seed: (values[0] + seed, values[1]) for seed, values in classes['MS'].items()}
    low, _ = photos.over_classes({'one': ['MS'], 'other': ['Margin']}, classes | {'MS': values}, {2, 4})
    expected = 100 * np.mean([values[seed][0] - classes['Margin'][seed][0] for seed in (2, 4)])
    assert low == pytest.approx(expected)


def test_512_dimensions_are_compared_seed_by_seed_and_apart_from_other_settings():
    """A seed gives them another initial layer, so that they have no part of its variance in common with 128."""
    random = np.random.default_rng(0)
    table = random.normal(size=(2, 2, 5))
    runs = {f'{loss}{end}': {seed: Run([{'test_map_at_r': value / 100}]) for seed, value in enumerate(values)}
            for end, of_losses in zip(('', '_512'), table, strict=True)
            for loss, values in zip('ab', of_losses, strict=True)}
    estimate = photos.effect({'one': ['a_512', 'b_512'], 'other': ['a', 'b'], 'paired': True}, runs, 'map_at_r', .99)
    small, large = table.mean(axis=1)
    expected = stats.ttest_rel(large, small).confidence_interval(.99)
    assert estimate[1:] == pytest.approx(expected) and estimate.mean == pytest.approx((large - small).mean())
    assert {*photos.points(runs | {'Untrained_512': runs['a']}, 'map_at_r')} == {'a', 'b', 'Untrained_512'}


def test_density_correlates_with_recall_in_these_rows(found):
    cells = line_of(photos.answer_table('finetuned', found['finetuned']),
                    'Does R@1 fall with spectral decay, over ten settings? (a correlation)')
    assert cells[2].startswith('-1.00 (-1.00') and cells[7] == 'negative'
    runs, _ = found['finetuned']['birds']
    names = [*LEVELS][1:]
    more = runs | {'MS': runs['MS'] | {5: runs['ProxyAnchor'][4]}}
    one, other = (photos.effect({'correlation': names}, some, 'map_at_r', .95) for some in (runs, more))
    assert one == other


def test_the_interval_over_test_classes(found):
    """Classes of 10, 20 and 30 images whose MAP@R is equal for all settings but for their means."""
    question = {'one': ['MS'], 'other': ['Margin']}
    _, classes = found['finetuned']['birds']
    low, high = photos.over_classes(question, classes, {2, 3, 4})
    expected = 100 * np.mean([classes['MS'][seed][0] - classes['Margin'][seed][0] for seed in (2, 3, 4)])
    assert low == pytest.approx(expected) == high
    drawn = []
    values = {name: np.mean([classes[name][seed][0] for seed in classes[name]], axis=0) for name in ('MS', 'Untrained')}
    values['MS'] = values['MS'] * [1, 2, 1]
    random = np.random.default_rng(5)
    for _ in range(2000):
        picked = random.integers(3, size=3)
        drawn.append(100 * np.average((values['MS'] - values['Untrained'])[picked], weights=SIZES[picked]))
    changed = {'MS': {2: (values['MS'], SIZES)}, 'Untrained': {2: (values['Untrained'], SIZES)}}
    found_ends = photos.over_classes({'one': ['MS'], 'other': ['Untrained']}, changed, {2})
    assert found_ends == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=.5)
    assert photos.over_classes({'selection': ['MS']}, classes, {2}) is None
    fewer = classes | {'MS': {2: classes['MS'][2]}}             # one run without values of classes
    assert photos.over_classes({'one': ['MS'], 'other': ['Untrained']}, fewer, {2, 3}) is None


def test_tables_say_how_many_seeds_and_which_devices(found):
    made = photos.tables(found)
    assert made['settings'].splitlines()[2].startswith('| ProxyAnchor | 1') and '±' in made['settings'].splitlines()[2]
    assert {line.split(' | ')[-1] for line in made['settings'].splitlines()[2:] if 'Untrained' not in line} == {'3 |'}
    untrained, = (line for line in made['settings'].splitlines() if 'Untrained' in line)
    assert untrained.startswith('| Untrained | ') and '±' not in untrained and untrained.endswith(' | 1 |')
    assert made['finetuned origin'].startswith('31 runs, 15.5 hours of epochs, on AMD EPYC; commits 01234567.')
    assert ' of each setting alone (18; Bartlett: p = ' in made['finetuned origin']
    assert made['frozen origin'].startswith('0 runs')
    short = made['photos in short']
    assert '| Is training (contrastive) better than untrained features? | ' in short and 'not run yet' in short
    assert 'semihard' not in short and 'after equal tuning' not in short and short.endswith(
        'Without an answer: 11 questions of docs/results.md.')


def test_the_picture_of_density(found, tmp_path):
    photos.draw_density(found['finetuned'], tmp_path / 'density.png')
    assert (tmp_path / 'density.png').stat().st_size > 5000
