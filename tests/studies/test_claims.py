"""The claims' effects, intervals and verdicts against closed forms, scipy and loops; the page against its rows."""
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from records.reading import Run
from reports import significance
from studies import claims, claims_page, effects
from utilities.errors import UserError

TEXT = {'paper': 'A et al.', 'place': 'Table 1', 'says': 'One is better.', 'data': 'Omniglot', 'protocol': 'a protocol',
        'control': 'the other', 'command': 'run', 'number': None, 'is_remembered': True, 'primary': True}


def claim(effect, methods, expects='greater', margin=1.0, name='one', **other):
    return claims.Claim(**TEXT | {'name': name, 'effect': effect, 'expects': expects, 'margin': margin, 'seeds': 2,
                                  'methods': {'data': 'Omniglot'} | methods} | other)


def runs(**methods):
    """{(data, method): {unit: Run}} of values of MAP@R per method, as fractions; R@1 is .3 higher."""
    return {('Omniglot', name): {('A', seed): Run(f'{name}_s{seed}', name, {}, [
        {'epoch': 1, effects.MAP: value, effects.RECALL: value + .3}]) for seed, value in enumerate(values)}
        for name, values in methods.items()}


def draw(n, mean, sd, seed):
    return np.random.default_rng(seed).normal(mean, sd, n)


def test_a_paired_effect_has_the_interval_and_the_p_of_the_t_test():
    control = draw(6, .4, .02, 0)
    other, third = control + draw(6, .02, .005, 1), control + draw(6, .01, .005, 2)
    found, = claims.findings([claim('paired', {'pairs': [['a', 'c'], ['b', 'c']]})], runs(a=other, b=third, c=control))
    differences = 100 * (np.array([other, third]).mean(axis=0) - control)
    expected = stats.ttest_1samp(differences, 1)
    estimate = found.estimates['mean']
    assert estimate.interval() == pytest.approx((*expected.confidence_interval(.95),)) and estimate.n == 6
    assert found.p == pytest.approx(expected.pvalue) and found.beside['mean'].mean == pytest.approx(differences.mean())


@pytest.mark.parametrize('expects, margin, mean, word', [
    ('greater', 1, 3, 'confirmed'), ('greater', 1, .2, 'refuted'), ('greater', 1, -3, 'refuted'),
    ('greater', 1, 1.1, 'undecided'), ('at most', 1, 3, 'refuted'), ('at most', 1, -3, 'confirmed'),
    ('at most', 1, .9, 'undecided'), ('equal', 1, 0, 'confirmed'), ('equal', 1, 3, 'refuted'),
    ('equal', 1, -3, 'refuted'), ('equal', 1, .9, 'undecided')])
def test_verdicts_by_the_place_of_the_interval(expects, margin, mean, word):
    verdict = claims.judged(effects.Estimate(mean, 6, .2, 5), expects, margin)
    assert verdict.word == word
    bounds = [margin] if expects != 'equal' else [-margin, margin]
    tests = [2 * stats.t.sf(abs(mean - bound) / .2, 5) for bound in bounds]
    assert verdict.p == pytest.approx(max(tests) if abs(mean) < margin else min(tests))
    draws = np.random.default_rng(0).standard_t(5, 10_000) * .2 + mean
    assert claims.judged(effects.Estimate(mean, 6, draws=draws), expects, margin).word == word


def test_holm_takes_verdicts_back_and_exploratory_claims_have_none():
    control = np.full(6, .4)
    clear = runs(c=control, a=control + draw(6, .014, .005, 1))
    alone, = claims.findings([claim('paired', {'pairs': [['a', 'c']]})], clear)
    assert alone.word == 'confirmed' and .0125 < alone.p < .05, alone.p
    several = [claim('paired', {'pairs': [['a', 'c']]}, name=str(place)) for place in range(4)]
    assert all(one.word == 'undecided' and one.p == pytest.approx(4 * alone.p)
               for one in claims.findings(several, clear))
    several[1:] = [claim('paired', {'pairs': [['a', 'c']]}, name=str(place), primary=False) for place in range(3)]
    assert [one.word for one in claims.findings(several, clear)] == ['confirmed', *['no verdict'] * 3]


def test_each_contrast_must_hold_and_one_refutes():
    control, methods = draw(6, .4, .01, 0), {}
    methods['same'], methods['near'] = control + draw(6, 0, .001, 1), control + draw(6, .001, .001, 2)
    methods['far'] = control - .05 + draw(6, 0, .001, 3)
    pairs = [[name, 'c'] for name in ('same', 'near')]
    found, = claims.findings([claim('each', {'pairs': pairs}, 'equal')], runs(c=control, **methods))
    assert found.word == 'confirmed' and [*found.estimates] == ['same', 'near']
    found, = claims.findings([claim('each', {'pairs': [*pairs, ['far', 'c']]}, 'equal')], runs(c=control, **methods))
    assert found.word == 'refuted'


def test_best_and_spread_are_statistics_of_means_and_their_bootstrap_has_the_known_spread():
    values = {name: draw(12, mean, .02, place) for place, (name, mean) in
              enumerate({'a': .5, 'b': .6, 'c': .4, 'd': .45}.items())}
    sides = {'of': ['a', 'b'], 'against': ['c', 'd']}
    best, spread = claims.findings([claim('best', sides), claim('spread', sides, name='two')], runs(**values))
    mean = {name: 100 * one.mean() for name, one in values.items()}
    assert best.estimates['best'].mean == pytest.approx(max(mean['a'], mean['b']) - max(mean['c'], mean['d']))
    assert spread.estimates['spread'].mean == pytest.approx(
        np.std([mean['a'], mean['b']], ddof=1) - np.std([mean['c'], mean['d']], ddof=1))
    error = math.sqrt(sum(np.var(100 * values[name]) / 12 for name in 'bd'))           # a and c are never the best
    assert best.estimates['best'].draws.std() == pytest.approx(error, rel=.05) and best.word == 'confirmed'


def test_the_epoch_chosen_on_test_classes_against_the_epoch_chosen_on_validation_classes():
    found = runs(a=[0] * 3)
    for seed, run in enumerate(found['Omniglot', 'a'].values()):
        run.rows = [{'epoch': 0, effects.MAP: .1}] + [
            {'epoch': epoch, effects.MAP: test, effects.RECALL: test, 'val_map_at_r': val, 'val_e_recall@1': val}
            for epoch, (test, val) in enumerate([(.5 + .01 * seed, .4), (.4, .6), (.3, .5)], 1)]
    one, = claims.findings([claim('selection', {'of': ['a']})], found)
    assert one.estimates['mean'].mean == pytest.approx(np.mean([10, 11, 12])) and one.estimates['mean'].n == 3


def test_pairs_told_apart_equal_a_loop_of_tests():
    rows = [draw(n, mean, .02, place)
            for place, (n, mean) in enumerate([(5, .4), (6, .41), (7, .45), (5, .5), (6, .5)])]
    p_values = [significance.welch_test(*pair) for pair in itertools.combinations(rows, 2)]
    expected = np.sum(np.array(significance.holm(p_values)) < .05)
    assert effects.told_apart(rows) == expected and 0 < expected < 10
    constant = [np.full(4, .4), np.full(4, .4), np.full(4, .5)]
    assert effects.told_apart(constant) in (0, 2)                            # never nan
    found, = claims.findings([claim('separated', {'of': list('abcde')}, margin=0)],
                             runs(**dict(zip('abcde', rows, strict=True))))
    assert found.estimates['pairs'].mean == 0 and found.estimates['pairs'].draws.any() == np.False_


def test_the_difference_of_correlations_is_spearmans():
    names, random = [f'm{place}' for place in range(20)], np.random.default_rng(0)
    results = random.normal(.5, .1, 20)
    decay, ratio = -results + random.normal(0, .02, 20), results + random.normal(0, .3, 20)
    found = runs(**{name: [value, value] for name, value in zip(names, results, strict=True)})
    for place, name in enumerate(names):
        for run in found['Omniglot', name].values():
            run.rows[-1] |= {'train_rho_spectrum@1': decay[place], 'train_dists@intra_over_inter': ratio[place]}
    one, = claims.findings([claim('correlations', {'of': names}, margin=10)], found)
    expected = 100 * (stats.spearmanr(-decay, results).statistic - stats.spearmanr(ratio, results).statistic)
    assert one.estimates['difference'].mean == pytest.approx(expected) and one.word == 'confirmed'
    low, high = one.estimates['difference'].interval()
    assert low < expected < high


def test_missing_runs_and_single_seeds_are_said():
    found, = claims.findings([claim('paired', {'pairs': [['a', 'c']]})], runs(c=[.4, .5]))
    assert found.lacking == 'a' and 'No runs of a yet.' in claims_page.page_of([found], [])
    found, = claims.findings([claim('paired', {'pairs': [['a', 'c']]})], runs(a=[.5], c=[.4, .5]))
    assert found.word == 'undecided' and found.lacking is None
    few = runs(a=[.5, .51, .52], c=[.4, .41, .421])
    found, = claims.findings([claim('paired', {'pairs': [['a', 'c']]}, seeds=6)], few)
    assert found.word == 'undecided' and found.p < .05 and '3 of 6 seeds so far' in claims_page.page_of([found], [])
    found, = claims.findings([claim('paired', {'pairs': [['a', 'c']]}, seeds=3)], few)
    assert found.word == 'confirmed'


def test_a_run_that_still_improves_is_named():
    found = runs(a=[.5] * 6, c=[.4] * 6)
    for method, last in (('a', .31), ('c', .304)):
        for run in found['Omniglot', method].values():
            run.rows = [{'epoch': epoch, 'val_map_at_r': value} for epoch, value in ((0, .1), (20, .3), (25, .2))] + [
                run.rows[-1] | {'epoch': 30, 'val_map_at_r': last}]
    one, = claims.findings([claim('paired', {'pairs': [['a', 'c']]})], found)
    assert one.changes == pytest.approx({'a': 1.0, 'c': .4})
    assert 'Not converged' in (page := claims_page.page_of([one], [])) and 'epochs: a +1.0.' in page


def test_the_registered_claims(tmp_path):
    known, not_testable = claims.load()
    assert [one.primary for one in known].count(True) == 12 and len(not_testable) == 3
    text = claims.FILE.read_text()
    for old, new, message in (
            ('effect: spread', 'effect: guess', 'claim 1: effect guess: expected paired'),
            ('expects: at most', 'expects: less', 'claim 7: expects less'),
            ('seeds: 12', 'seeds: 20', '2 to 12 seeds'), ('    seeds: 4\n', '', 'claim 3: expected the keys'),
            ('name: dimension', 'name: spread', 'two claims have the name spread')):
        (tmp_path / 'claims.yaml').write_text(text.replace(old, new, 1))
        with pytest.raises(UserError, match=message):
            claims.load(tmp_path / 'claims.yaml')


def test_the_page_is_what_its_rows_say(tmp_path):
    claims_page.main(['--page', str(tmp_path / 'claims.md')])
    page = (tmp_path / 'claims.md').read_text()
    assert page == (claims.FILE.parent.parent / 'docs' / 'claims.md').read_text() and len(page.splitlines()) <= 400
