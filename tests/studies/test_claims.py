"""The claims' effects, intervals and verdicts against closed forms, scipy and loops; the page against its rows."""
import itertools
import math
import re

import numpy as np
import pytest
from scipy import stats

from records.reading import Run
from reports import significance
from studies import claims, claims_page, effects
from utilities.errors import UserError

TEXT = {'title': 'One', 'paper': 'A et al.', 'place': 'Table 1', 'says': 'One is better.', 'data': 'Omniglot',
        'protocol': 'a protocol', 'control': 'the other', 'command': 'run', 'number': None, 'is_remembered': True,
        'primary': True}


def claim(effect, methods, expects='greater', margin=1.0, name='one', **other):
    return claims.Claim(**TEXT | {'name': name, 'effect': effect, 'expects': expects, 'margin': margin, 'seeds': 2,
                                  'methods': {'data': 'Omniglot'} | methods} | other)


def runs(**methods):
    """{(data, method): {unit: Result}} of values of MAP@R per method, as fractions; R@1 is .3 higher."""
    return {('Omniglot', name): {unit: claims.Result(Run(str(unit), name, {}, [
        {'epoch': 1, effects.MAP: value, effects.RECALL: value + .3, effects.VALIDATION: value}]))
        for unit, value in zip(units(len(values)), values, strict=True)} for name, values in methods.items()}


def units(n):
    """Halves and seeds in turn: A 0, B 0, A 1, ..."""
    return [('AB'[place % 2], place // 2) for place in range(n)]


def over_halves(values, bound=0):
    """
    (mean, 95 % interval, p of the mean being `bound`) of values in the order of units(): the mean over halves is half
    the difference of A and -B, which Welch's test compares.
    """
    a, b = np.array(values[::2]), np.array(values[1::2])
    found = stats.ttest_ind(a - 2 * bound, -b, equal_var=False)
    interval = stats.ttest_ind(a, -b, equal_var=False).confidence_interval(.95)
    return (a.mean() + b.mean()) / 2, (interval.low / 2, interval.high / 2), found.pvalue


def draw(n, mean, sd, seed):
    return np.random.default_rng(seed).normal(mean, sd, n)


@pytest.mark.parametrize('n', [6, 7])
def test_a_paired_effect_has_the_interval_and_the_p_of_a_test_over_the_halves(n):
    control = draw(n, .4, .02, 0)
    control[::2] += .1                                                           # half A is easier, for all methods
    other, third = control + draw(n, .02, .005, 1), control + draw(n, .01, .005, 2)
    found, = claims.findings([claim('paired', {'pairs': [['a', 'c'], ['b', 'c']]})], runs(a=other, b=third, c=control))
    mean, interval, p = over_halves(100 * (np.array([other, third]).mean(axis=0) - control), 1)
    estimate = found.estimates['mean over the losses']
    assert estimate.mean == pytest.approx(mean) and estimate.interval() == pytest.approx(interval) and estimate.n == n
    assert found.p == pytest.approx(p) and found.beside['mean over the losses'].mean == pytest.approx(mean)
    assert found.parts['b'][0].mean == pytest.approx(over_halves(100 * (third - control))[0])


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
    assert verdict.p == pytest.approx(max(tests))                                  # against the nearer margin
    draws = np.random.default_rng(0).standard_t(5, 10_000) * .2 + mean
    assert claims.judged(effects.Estimate(mean, 6, draws=draws), expects, margin).word == word


def test_holm_takes_verdicts_back_and_exploratory_claims_have_none():
    control = np.full(6, .4)
    clear = runs(c=control, a=control + draw(6, .018, .005, 1))
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


def test_best_takes_the_methods_that_are_best_on_validation_classes():
    values = {name: draw(12, mean, .02, place) for place, (name, mean) in
              enumerate({'a': .5, 'b': .6, 'c': .4, 'd': .45}.items())}
    for row in values.values():
        row[::2] += .1
    known = runs(**values)
    for run, _ in known['Omniglot', 'a'].values():
        run.rows[-1][effects.VALIDATION] += 1
    found, = claims.findings([claim('best', {'of': ['a', 'b'], 'against': ['c', 'd']})], known)
    estimate = found.estimates['a minus d']
    squares = [10_000 * part.var(ddof=1) / 6 / 4 for name in 'ad' for part in (values[name][::2], values[name][1::2])]
    assert estimate.mean == pytest.approx(100 * (values['a'].mean() - values['d'].mean()))
    assert estimate.error == pytest.approx(math.sqrt(sum(squares))) and found.word == 'confirmed'
    assert estimate.freedom == pytest.approx(sum(squares) ** 2 / sum(square ** 2 / 5 for square in squares))    # Welch


def test_a_method_without_randomness_needs_one_run_per_half_and_adds_no_error():
    values = {'a': draw(8, .5, .02, 0), 'pca': [.4, .5]}
    sides = {'of': ['a'], 'against': ['pca']}
    found, = claims.findings([claim('best', sides | {'fixed': ['pca']}, seeds=8)], runs(**values))
    mean, interval, _ = over_halves(100 * values['a'])
    assert found.n_units == 8 and found.estimates['a minus pca'].interval() == pytest.approx(
        [mean - 45 - (mean - interval[0]), mean - 45 + (mean - interval[0])])
    found, = claims.findings([claim('best', sides, seeds=8)], runs(**values))
    assert found.word == claims.INCOMPLETE and math.isnan(found.estimates['a minus pca'].interval()[0])


def test_halves_that_only_one_method_has_do_not_count():
    values = runs(a=[.5, .7] * 3, c=[.4, .9] * 3)
    for unit in units(6)[1::2]:
        del values['Omniglot', 'c'][unit]
    found, = claims.findings([claim('best', {'of': ['a'], 'against': ['c']})], values)
    assert found.estimates['a minus c'].mean == pytest.approx(10)


def test_spread_is_a_difference_of_standard_deviations_and_keeps_its_level():
    values = {name: draw(12, mean, .02, place) for place, (name, mean) in
              enumerate({'a': .5, 'b': .6, 'c': .4, 'd': .45}.items())}
    found, = claims.findings([claim('spread', {'of': ['a', 'b'], 'against': ['c', 'd']})], runs(**values))
    mean = {name: 100 * one.mean() for name, one in values.items()}
    estimate, = found.estimates.values()
    assert estimate.mean == pytest.approx(
        np.std([mean['a'], mean['b']], ddof=1) - np.std([mean['c'], mean['d']], ddof=1))
    misses, random = 0, np.random.default_rng(0)
    for _ in range(200):                                         # five losses per side, all of the same true spread
        rows = {name: random.normal(.4 + .02 * (place % 5), .01, 10) for place, name in enumerate('abcdefghij')}
        spread, = effects.spread(claims.Methods(claim('spread', {'of': list('abcde'), 'against': list('fghij')}),
                                                runs(**rows)), effects.MAP).values()
        low, high = spread.interval()
        misses += not low <= 0 <= high
    assert misses <= 20                                          # 10 are expected; more than 20 with probability .001


def test_intervals_over_test_classes_resample_them_for_all_runs_alike():
    sizes, random = np.array([20, 30, 10, 40, 20]), np.random.default_rng(0)
    classes = {unit: random.uniform(.2, .8, 5) for unit in units(4)}
    results = {('Omniglot', name): {unit: claims.Result(
        Run(name, name, {}, [{'epoch': 1, effects.MAP: one @ sizes / sizes.sum() + gain, effects.RECALL: .5}]),
        claims.resampled(unit[0], one + gain, sizes)) for unit, one in classes.items()}
        for name, gain in (('a', .1), ('c', 0))}
    found, = claims.findings([claim('paired', {'pairs': [['a', 'c']]})], results)
    assert found.estimates['a minus c'].interval_over_classes() == pytest.approx((10, 10))
    equal = {unit: claims.Result(result.run, claims.resampled(unit[0], classes[unit], np.full(5, 20)))
             for unit, result in results['Omniglot', 'c'].items()}
    alone = effects.average(effects.values(equal, effects.MAP)).over_classes
    variances = [100 ** 2 * np.mean([classes[half, 0], classes[half, 1]], axis=0).var() / 5 for half in 'AB']
    assert alone.std() == pytest.approx(math.sqrt(sum(variances)) / 2, rel=.06)     # the halves draw independently
    counts = np.random.default_rng(ord('A')).multinomial(5, np.full(5, .2), claims.N_CLASS_DRAWS)[7]
    images = [value for value, size, count in zip(classes['A', 0], sizes, counts, strict=True)
              for _ in range(size * count)]
    assert claims.resampled('A', classes['A', 0], sizes)[7] == pytest.approx(np.mean(images))
    assert found.beside['a minus c'].interval_over_classes() is None


def test_the_epoch_chosen_on_test_classes_against_the_epoch_chosen_on_validation_classes():
    found = runs(a=[0] * 4)
    for seed, (run, _) in enumerate(found['Omniglot', 'a'].values()):
        run.rows = [{'epoch': 0, effects.MAP: .1}] + [
            {'epoch': epoch, effects.MAP: test, effects.RECALL: test, 'val_map_at_r': val, 'val_e_recall@1': val}
            for epoch, (test, val) in enumerate([(.5 + .01 * seed, .4), (.4, .6), (.3, .5)], 1)]
    one, = claims.findings([claim('selection', {'of': ['a']})], found)
    estimate = one.estimates['mean over the losses']
    assert estimate.mean == pytest.approx(np.mean([10, 11, 12, 13])) and estimate.n == 4


def test_pairs_told_apart_equal_a_loop_of_tests():
    rows = {name: draw(8, mean, .02, place) for place, (name, mean) in
            enumerate(zip('abcde', (.4, .41, .45, .5, .5), strict=True))}
    estimates = {name: effects.average(dict(zip([('A', seed) for seed in range(8)], 100 * row[:, None], strict=True)))
                 for name, row in rows.items()}
    pairs = list(itertools.combinations(rows, 2))
    p_values = significance.holm([significance.welch_test(rows[one], rows[other]) for one, other in pairs])
    found = effects.told_apart([*estimates.values()])
    expected = {pair: p < .05 for pair, p in zip(pairs, p_values, strict=True)}
    assert 0 < sum(expected.values()) < 10
    for one, other in pairs:
        assert found['abcde'.index(one), 'abcde'.index(other)] == expected[one, other]
    constant = [effects.average({('A', seed): np.array([value]) for seed in range(4)}) for value in (40, 40, 50)]
    assert effects.told_apart(constant).sum() / 2 == 2                                      # without variance


def test_separated_counts_pairs_and_resamples_methods():
    values = {name: draw(12, .4 + .02 * place, .01, place) for place, name in enumerate('abcdef')}
    found = runs(**values)
    same, = claims.findings([claim('separated', {'of': list('abcdef')}, margin=0)], found)
    estimate, = same.estimates.values()
    assert estimate.mean == 0 and not estimate.draws.any() and same.word == 'undecided'
    for results in found.values():                                     # R@1 without any difference between methods
        for run, _ in results.values():
            run.rows[-1][effects.RECALL] = .5 + run.rows[-1][effects.MAP] % .01
    more, = claims.findings([claim('separated', {'of': list('abcdef')}, margin=0)], found)
    estimate, = more.estimates.values()
    assert 10 <= estimate.mean <= 15 and more.word == 'confirmed'
    counts = np.random.default_rng(0).multinomial(6, np.full(6, 1 / 6), effects.DRAWS)[0]           # the first draw
    gain = effects.told_apart([*effects.averages(claims.Methods(more.claim, found), 'of', effects.MAP).values()])
    pairs = [(counts[i] * counts[j], gain[i, j]) for i, j in itertools.combinations(range(6), 2)]
    assert estimate.draws[0] == pytest.approx(15 * sum(w * g for w, g in pairs) / sum(w for w, _ in pairs))


def test_the_difference_of_correlations_is_spearmans():
    names, random = [f'm{place}' for place in range(20)], np.random.default_rng(0)
    results = random.normal(.5, .1, 20)
    decay, ratio = -results + random.normal(0, .02, 20), results + random.normal(0, .3, 20)
    found = runs(**{name: [value, value] for name, value in zip(names, results, strict=True)})
    for place, name in enumerate(names):
        for run, _ in found['Omniglot', name].values():
            run.rows[-1] |= {'train_rho_spectrum@1': decay[place], 'train_dists@intra_over_inter': ratio[place]}
    one, = claims.findings([claim('correlations', {'of': names}, margin=10)], found)
    expected = 100 * (stats.spearmanr(-decay, results).statistic - stats.spearmanr(ratio, results).statistic)
    estimate, = one.estimates.values()
    assert estimate.mean == pytest.approx(expected) and one.word == 'confirmed'
    low, high = estimate.interval()
    assert low < expected < high


def test_missing_runs_and_single_seeds_are_said():
    found, = claims.findings([claim('paired', {'pairs': [['a', 'c']]})], runs(c=[.4, .5]))
    assert found.lacking == 'a' and 'Runs are missing, first of a.' in claims_page.page_of([found], [])
    found, = claims.findings([claim('paired', {'pairs': [['a', 'c']]})], runs(a=[.5], c=[.4, .5]))
    assert found.word == claims.INCOMPLETE and found.lacking is None
    few = runs(a=[.5, .51, .52, .53], c=[.4, .41, .421, .432])
    found, = claims.findings([claim('paired', {'pairs': [['a', 'c']]}, seeds=6)], few)
    assert found.word == claims.INCOMPLETE and found.p < .05
    assert '4 of 6 seeds so far' in claims_page.page_of([found], [])
    found, = claims.findings([claim('paired', {'pairs': [['a', 'c']]}, seeds=4)], few)
    assert found.word == 'confirmed'


def test_a_run_that_still_improves_is_named():
    found = runs(a=[.5] * 6, c=[.4] * 6)
    for method, last in (('a', .31), ('c', .304)):
        for run, _ in found['Omniglot', method].values():
            run.rows = [{'epoch': epoch, 'val_map_at_r': value} for epoch, value in ((0, .1), (20, .3), (25, .2))] + [
                run.rows[-1] | {'epoch': 30, 'val_map_at_r': last}]
    one, = claims.findings([claim('paired', {'pairs': [['a', 'c']]})], found)
    assert one.changes == pytest.approx({'a': 1.0, 'c': .4})
    assert 'Not converged' in (page := claims_page.page_of([one], [])) and '- Not converged: a +1.0.' in page


def test_the_registered_claims(tmp_path):
    known, not_testable = claims.load()
    assert [one.primary for one in known].count(True) == 12 and len(not_testable) == 3
    text = claims.FILE.read_text()
    for old, new, message in (
            ('effect: spread', 'effect: guess', 'claim 1: effect guess: expected paired'),
            ('expects: at most', 'expects: less', 'claim 7: expects less'),
            ('seeds: 12', 'seeds: 20', '2 to 12 seeds'), ('    seeds: 2\n', '', 'claim 3: expected the keys'),
            ('name: dimension', 'name: spread', 'two claims have the name spread'),
            ("reason: 'Its", 'reason: Its', 'not_testable Recall@k surrogate: expected the keys name')):
        (tmp_path / 'claims.yaml').write_text(text.replace(old, new, 1))
        with pytest.raises(UserError, match=message):
            claims.load(tmp_path / 'claims.yaml')


def test_the_page_and_the_table_of_the_readme_are_what_their_rows_say(tmp_path):
    code = claims.FILE.parent.parent
    readme = (code / 'README.md').read_text()
    (tmp_path / 'README.md').write_text(re.sub(r'(verdict \|\n)\|.*?\n\n', r'\1| --- | --- | --- | --- | --- |\n\n',
                                               readme, flags=re.DOTALL))
    claims_page.main(['--page', str(tmp_path / 'claims.md'), '--readme', str(tmp_path / 'README.md')])
    page = (tmp_path / 'claims.md').read_text()
    assert page == (code / 'docs' / 'claims.md').read_text() and len(page.splitlines()) <= 400
    assert (tmp_path / 'README.md').read_text() == readme and len(readme.split()) <= 1550
    (tmp_path / 'README.md').write_text('# Nothing')
    with pytest.raises(UserError, match='has no table with the heads claim'):
        claims_page.main(['--page', str(tmp_path / 'claims.md'), '--readme', str(tmp_path / 'README.md')])
