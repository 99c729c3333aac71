"""Tables of ensembles: on known records, the tests that they print are scipy's."""

import numpy as np
import pandas
import pytest
from scipy import stats

from reports import ensemble_tables
from reports.significance import holm
from tests.reports.printed import compile_latex


def records(scores, n_folds=4, metric='test_map_at_r'):
    """{method: {seed: mean}} -> (log, folds), the folds around the mean; concatenated is 0.1 better."""
    log, folds = [], []
    random = np.random.default_rng(0)
    for method, seeds in scores.items():
        for seed, mean in seeds.items():
            own = {'dataset': 'cub200', 'method': method, 'seed': seed, 'trained_status': 'trained'}
            values = mean + random.normal(0, .01, n_folds)
            folds += [own | {'fold': fold, metric: value} for fold, value in enumerate(values)]
            log += [own | {'form': 'separated', 'dim': 128, metric: values.mean()},
                    own | {'form': 'concatenated', 'dim': 512, metric: mean + .1}]
    return pandas.DataFrame(log), pandas.DataFrame(folds)


def test_the_report_on_known_records():
    random = np.random.default_rng(1)
    scores = {method: dict(enumerate(mean + random.normal(0, .004, 10)))
              for method, mean in {'Near': .299, 'Best': .3, 'Far': .2, 'Few': .25}.items()}
    scores['Few'] = {3: scores['Few'][3]}
    log, folds = records(scores)
    compared = ensemble_tables.compare(log, folds, ['test_map_at_r']).set_index(['form', 'method'])
    for form, table, keys in (('separated', folds, ['seed', 'fold']), ('concatenated', log, ['seed'])):
        table = table[table.form == form] if 'form' in table else table
        values = {method: part.set_index(keys).test_map_at_r for method, part in table.groupby('method')}
        best = max(values, key=lambda method: values[method].groupby('seed').mean().mean())
        p = {}
        for method in values.keys() - {best}:
            row = compared.loc[form, method]
            shared = values[best].index.intersection(values[method].index)
            assert row.against == best and row.n_pairs == len(shared) and not row.best
            p[method] = row.p
            if len(shared) > 1:
                assert row.p == pytest.approx(stats.ttest_rel(values[best][shared], values[method][shared]).pvalue)
        assert np.isnan(p['Few']) == (form == 'concatenated') and compared.loc[form, best].best
        corrected = dict(zip(p, holm(list(p.values())), strict=True))
        assert all(compared.loc[form, method].p_holm == pytest.approx(corrected[method], nan_ok=True) for method in p)
        for method, seeds in scores.items():
            own = log[(log.form == form) & (log.method == method)].test_map_at_r
            assert compared.loc[form, method]['mean'] == pytest.approx(own.mean())
            assert compared.loc[form, method].n == len(seeds) and compared.loc[form, method].n_expected == 10

    texts = ensemble_tables.report(log, folds, ['test_map_at_r'])
    cells = {line.split(' | ')[0].strip('| '): line.strip('|').split(' | ')[1:]
             for line in texts['markdown'].splitlines() if line.startswith('| ')}
    assert '†' in cells['Near'][0] + cells['Best'][0] and '†' not in ''.join(cells['Far'])
    assert '‡ (n = 1)' in cells['Few'][0] and '‡' not in cells['Few'][1]
    for text in ('CUB200-2011, test classes: mean and 95 % t-interval', 'Holm-corrected for 3 comparisons',
                 'pairs: seeds (n = 1 to 10), or folds and seeds (n = 4 to 40)', '‡: no test'):
        assert text in texts['markdown']
    assert '$^\\dagger$' in texts['latex'] and 'MAP@R' in texts['latex'] and texts['csv'].count('\n') == 9


def test_the_report_of_one_seed_one_method_and_metrics_without_a_best():
    log, folds = records({'A': {0: .3}, 'B': {0: .4}})
    text = ensemble_tables.report(log, folds, ['test_map_at_r'])['markdown']
    assert 'one seed, and so no interval' in text and '±' not in text and '**50.00**' in text and '40.00‡' in text
    log, folds = records({'A': {0: .7}, 'B': {0: .4, 1: .5}, 'C': {0: .3, 1: .2}})
    text = ensemble_tables.report(log, folds, ['test_map_at_r'])['markdown']
    assert '| A | 80.00‡ (n = 1) |' in text and '| **55.00 ± 63.53** |' in text and 'Bold: the best mean over' in text
    log, folds = records({'A': {0: .3, 1: .31}})
    text = ensemble_tables.report(log, folds, ['test_map_at_r'])['markdown']
    assert '40.50 ± 6.35 |' in text and 'Bold' not in text and '†' not in text
    log, folds = records({'A': {0: .3, 1: .31}, 'B': {0: .4, 1: .5}}, metric='test_dists@intra')
    text = ensemble_tables.report(log, folds, ['test_dists@intra'])['markdown']
    assert '0.4050 ± 0.0635 |' in text and '**' not in text and 'percent' not in text
    log, folds = records({'A': {0: .3, 1: np.nan}, 'B': {0: .4, 1: .5}})
    text = ensemble_tables.report(log, folds, ['test_map_at_r'])['markdown']
    assert '| A | – | – |' in text and '- A, concatenated: test_map_at_r is not a number' in text


def test_the_latex_compiles(tmp_path):
    log, folds = records({'A_b': {0: .3, 1: .31}, 'B': {0: .4, 1: .5}, 'C': {0: .4}})
    compile_latex(ensemble_tables.report(log, folds, ['test_map_at_r'])['latex'], tmp_path)
