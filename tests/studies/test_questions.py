"""The questions' effects, intervals and answers against closed forms, scipy and loops."""
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from records.reading import Run
from reports import significance
from studies import questions
from studies.estimates import Estimate, answer, average, p_against
from utilities.errors import UserError


def question(effect, methods, expects='greater', margin=1.0, name='one', primary=True, seeds=2):
    return SimpleNamespace(name=name, effect=effect, expects=expects, margin=margin, primary=primary, seeds=seeds,
                           methods={'data': 'Omniglot'} | methods)


def found_of(results, *asked, **given):
    """The Finding of one question."""
    found, = questions.findings([question(*asked, **given)], results)
    return found


def runs(**methods):
    """{(data, method): {unit: Result}} of values of MAP@R per method, as fractions; R@1 is .3 higher."""
    return {('Omniglot', name): {unit: questions.Result(Run(str(unit), name, {}, [
        {'epoch': 1, questions.MAP: value, questions.RECALL: value + .3, questions.VALIDATION: value}]))
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
    found = found_of(runs(a=other, b=third, c=control), 'paired', {'pairs': [['a', 'c'], ['b', 'c']]})
    mean, interval, p = over_halves(100 * (np.array([other, third]).mean(axis=0) - control), 1)
    estimate = found.contrasts['mean over the losses'][0]
    assert estimate.mean == pytest.approx(mean) and estimate.interval() == pytest.approx(interval) and estimate.n == n
    assert found.p == pytest.approx(p) and found.contrasts['mean over the losses'][1].mean == pytest.approx(mean)
    assert found.contrasts['b'][0].mean == pytest.approx(over_halves(100 * (third - control))[0])


@pytest.mark.parametrize('asks, margin, mean, word', [
    ('greater', 1, 3, 'yes'), ('greater', 1, .2, 'no'), ('greater', 1, -3, 'no'), ('greater', 1, 1.1, 'open'),
    ('at most', 1, 3, 'no'), ('at most', 1, -3, 'yes'), ('at most', 1, .9, 'open'), ('equal', 1, 0, 'yes'),
    ('equal', 1, 3, 'no'), ('equal', 1, -3, 'no'), ('equal', 1, .9, 'open'), ('equal', 1, math.nan, 'open')])
def test_what_an_interval_answers(asks, margin, mean, word):
    estimate = Estimate(mean, 6, .2, 5)
    assert answer(estimate, asks, margin) == word
    bounds = [margin] if asks != 'equal' else [-margin, margin]
    tests = [2 * stats.t.sf(abs(mean - bound) / .2, 5) for bound in bounds]
    assert p_against(estimate, asks, margin) == pytest.approx(max(tests), nan_ok=True)     # against the nearer margin
    draws = np.random.default_rng(0).standard_t(5, 10_000) * .2 + mean
    assert answer(Estimate(mean, 6, draws=draws), asks, margin) == word


def test_an_answer_needs_its_interval_and_p_corrected_over_the_primary_questions():
    control = np.full(6, .4)
    clear = runs(c=control, a=control + draw(6, .018, .005, 1))
    alone = found_of(clear, 'paired', {'pairs': [['a', 'c']]})
    assert alone.answer == 'yes' and .0125 < alone.p < .05, alone.p
    several = [question('paired', {'pairs': [['a', 'c']]}, primary=place < 4) for place in range(6)]
    found = questions.findings(several, clear)
    assert [one.p for one in found] == pytest.approx([4 * alone.p] * 4 + [math.nan] * 2, nan_ok=True)
    assert all(one.by_interval == 'yes' for one in found)
    assert [one.answer for one in found] == ['open'] * 4 + ['yes'] * 2              # checks have no corrected p
    pairs = [['a', 'c'], ['b', 'c']]
    several = [question('paired', {'pairs': pairs}) for _ in range(40)]
    one, *_ = questions.findings(several, clear | runs(b=control + draw(6, .018, .005, 1)))
    *_, mean = one.contrasts
    assert one.by_interval == 'yes' and one.answer == 'open' and one.single_answer(mean) == 'open'


def test_each_contrast_must_hold_and_one_refutes():
    control, methods = draw(6, .4, .01, 0), {}
    methods['same'], methods['near'] = control + draw(6, 0, .001, 1), control + draw(6, .001, .001, 2)
    methods['far'] = control - .05 + draw(6, 0, .001, 3)
    pairs = [[name, 'c'] for name in ('same', 'near')]
    found = found_of(runs(c=control, **methods), 'each', {'pairs': pairs}, 'equal')
    assert found.answer == 'yes' and [*found.contrasts] == ['same', 'near']
    found = found_of(runs(c=control, **methods), 'each', {'pairs': [*pairs, ['far', 'c']]}, 'equal')
    assert found.answer == 'no'


def test_best_takes_the_methods_that_are_best_on_validation_classes():
    values = {name: draw(12, mean, .02, place) for place, (name, mean) in
              enumerate({'a': .5, 'b': .6, 'c': .4, 'd': .45}.items())}
    for row in values.values():
        row[::2] += .1
    known = runs(**values)
    for run, _ in known['Omniglot', 'a'].values():
        run.rows[-1][questions.VALIDATION] += 1
    found = found_of(known, 'best', {'of': ['a', 'b'], 'against': ['c', 'd']})
    estimate = found.contrasts['a minus d'][0]
    squares = [10_000 * part.var(ddof=1) / 6 / 4 for name in 'ad' for part in (values[name][::2], values[name][1::2])]
    assert estimate.mean == pytest.approx(100 * (values['a'].mean() - values['d'].mean()))
    assert estimate.error == pytest.approx(math.sqrt(sum(squares))) and found.answer == 'yes'
    assert estimate.freedom == pytest.approx(sum(squares) ** 2 / sum(square ** 2 / 5 for square in squares))    # Welch


def test_a_method_without_randomness_needs_one_run_per_half_and_adds_no_error():
    values = {'a': draw(8, .5, .02, 0), 'pca': [.4, .5]}
    sides = {'of': ['a'], 'against': ['pca']}
    found = found_of(runs(**values), 'best', sides | {'fixed': ['pca']}, seeds=8)
    mean, interval, _ = over_halves(100 * values['a'])
    assert found.contrasts['a minus pca'][0].interval() == pytest.approx(
        [mean - 45 - (mean - interval[0]), mean - 45 + (mean - interval[0])])
    with pytest.raises(UserError, match='one: 2 of 8 seeds'):
        found_of(runs(**values), 'best', sides, seeds=8)
    found = found_of(runs(**values), 'best', sides)
    assert found.answer == 'open' and math.isnan(found.contrasts['a minus pca'][0].interval()[0])


def test_halves_that_only_one_method_has_do_not_count():
    values = runs(a=[.5, .7] * 3, c=[.4, .9] * 3)
    for unit in units(6)[1::2]:
        del values['Omniglot', 'c'][unit]
    found = found_of(values, 'best', {'of': ['a'], 'against': ['c']})
    assert found.contrasts['a minus c'][0].mean == pytest.approx(10)


def test_spread_is_a_difference_of_standard_deviations_and_keeps_its_level():
    values = {name: draw(12, mean, .02, place) for place, (name, mean) in
              enumerate({'a': .5, 'b': .6, 'c': .4, 'd': .45}.items())}
    found = found_of(runs(**values), 'spread', {'of': ['a', 'b'], 'against': ['c', 'd']})
    mean = {name: 100 * one.mean() for name, one in values.items()}
    (estimate, _), = found.contrasts.values()
    assert estimate.mean == pytest.approx(
        np.std([mean['a'], mean['b']], ddof=1) - np.std([mean['c'], mean['d']], ddof=1))
    misses, random = 0, np.random.default_rng(0)
    for _ in range(100):                                         # five losses per side, all of the same true spread
        rows = {name: random.normal(.4 + .02 * (place % 5), .01, 10) for place, name in enumerate('abcdefghij')}
        asked = question('spread', {'of': list('abcde'), 'against': list('fghij')})
        spread, = questions.spread(questions.Methods(asked, runs(**rows)), questions.MAP).values()
        low, high = spread.interval()
        misses += not low <= 0 <= high
    assert misses <= 13                                          # 5 are expected; more than 13 with probability .001


def test_intervals_over_test_classes_resample_them_for_all_runs_alike():
    sizes, random = np.array([20, 30, 10, 40, 20]), np.random.default_rng(0)
    classes = {unit: random.uniform(.2, .8, 5) for unit in units(4)}
    results = {('Omniglot', name): {unit: questions.Result(
        Run(name, name, {}, [{'epoch': 1, questions.MAP: one @ sizes / sizes.sum() + gain, questions.RECALL: .5}]),
        questions.resampled(unit[0], one + gain, sizes)) for unit, one in classes.items()}
        for name, gain in (('a', .1), ('c', 0))}
    found = found_of(results, 'paired', {'pairs': [['a', 'c']]})
    assert found.contrasts['a'][0].interval_over_classes() == pytest.approx((10, 10))
    equal = {unit: questions.Result(result.run, questions.resampled(unit[0], classes[unit], np.full(5, 20)))
             for unit, result in results['Omniglot', 'c'].items()}
    alone = average(questions.values(equal, questions.MAP)).over_classes
    variances = [100 ** 2 * np.mean([classes[half, 0], classes[half, 1]], axis=0).var() / 5 for half in 'AB']
    assert alone.std() == pytest.approx(math.sqrt(sum(variances)) / 2, rel=.06)     # the halves draw independently
    counts = np.random.default_rng(ord('A')).multinomial(5, np.full(5, .2), questions.N_CLASS_DRAWS)[7]
    images = [value for value, size, count in zip(classes['A', 0], sizes, counts, strict=True)
              for _ in range(size * count)]
    assert questions.resampled('A', classes['A', 0], sizes)[7] == pytest.approx(np.mean(images))
    assert found.contrasts['a'][1].interval_over_classes() is None


def test_the_epoch_chosen_on_test_classes_against_the_epoch_chosen_on_validation_classes():
    found = runs(a=[0] * 4)
    for seed, (run, _) in enumerate(found['Omniglot', 'a'].values()):
        run.rows = [{'epoch': 0, questions.MAP: .1}] + [
            {'epoch': epoch, questions.MAP: test, questions.RECALL: test, 'val_map_at_r': val, 'val_e_recall@1': val}
            for epoch, (test, val) in enumerate([(.5 + .01 * seed, .4), (.4, .6), (.3, .5)], 1)]
    one = found_of(found, 'selection', {'of': ['a']})
    (estimate, _), = one.contrasts.values()
    assert estimate.mean == pytest.approx(np.mean([10, 11, 12, 13])) and estimate.n == 4


def test_pairs_told_apart_equal_a_loop_of_tests():
    rows = {name: draw(8, mean, .02, place) for place, (name, mean) in
            enumerate(zip('abcde', (.4, .41, .45, .5, .5), strict=True))}
    estimates = {name: average(dict(zip([('A', seed) for seed in range(8)], 100 * row[:, None], strict=True)))
                 for name, row in rows.items()}
    pairs = list(itertools.combinations(rows, 2))
    p_values = significance.holm([significance.welch_test(rows[one], rows[other]) for one, other in pairs])
    found = questions.told_apart([*estimates.values()])
    expected = {pair: p < .05 for pair, p in zip(pairs, p_values, strict=True)}
    assert 0 < sum(expected.values()) < 10
    for one, other in pairs:
        assert found['abcde'.index(one), 'abcde'.index(other)] == expected[one, other]
    constant = [average({('A', seed): np.array([value]) for seed in range(4)}) for value in (40, 40, 50)]
    assert questions.told_apart(constant).sum() / 2 == 2                                      # without variance


def test_separated_counts_pairs_and_resamples_methods():
    values = {name: draw(12, .4 + .02 * place, .01, place) for place, name in enumerate('abcdef')}
    found = runs(**values)
    same = found_of(found, 'separated', {'of': list('abcdef')}, margin=0)
    (estimate, _), = same.contrasts.values()
    assert estimate.mean == 0 and not estimate.draws.any() and same.answer == 'open'
    for results in found.values():                                     # R@1 without any difference between methods
        for run, _ in results.values():
            run.rows[-1][questions.RECALL] = .5 + run.rows[-1][questions.MAP] % .01
    more = found_of(found, 'separated', {'of': list('abcdef')}, margin=0)
    (estimate, _), = more.contrasts.values()
    assert 10 <= estimate.mean <= 15 and more.answer == 'yes'
    counts = np.random.default_rng(0).multinomial(6, np.full(6, 1 / 6), questions.DRAWS)[0]           # the first draw
    of = questions.Methods(more.question, found)
    gain = questions.told_apart([*questions.averages(of, 'of', questions.MAP).values()])
    pairs = [(counts[i] * counts[j], gain[i, j]) for i, j in itertools.combinations(range(6), 2)]
    assert estimate.draws[0] == pytest.approx(15 * sum(w * g for w, g in pairs) / sum(w for w, _ in pairs))


def test_correlations_and_their_difference_are_spearmans_and_pearsons():
    names, random = [f'm{place}' for place in range(20)], np.random.default_rng(0)
    results = random.normal(.5, .1, 20)
    decay, ratio = -results + random.normal(0, .02, 20), results + random.normal(0, .3, 20)
    found = runs(**{name: [value, value] for name, value in zip(names, results, strict=True)})
    for place, name in enumerate(names):
        for run, _ in found['Omniglot', name].values():
            run.rows[-1] |= {'train_rho_spectrum@1': decay[place], 'train_dists@intra_over_inter': ratio[place]}
    one = found_of(found, 'correlations', {'of': names}, margin=.1)
    for place, correlate in enumerate((stats.spearmanr, stats.pearsonr)):                    # in MAP@R, in R@1
        single = [correlate(-decay, results).statistic, correlate(ratio, results).statistic]
        estimates = [both[place] for both in one.contrasts.values()]
        assert [estimate.mean for estimate in estimates] == pytest.approx([*single, single[0] - single[1]])
        for estimate in estimates:
            low, high = estimate.interval()
            assert low < estimate.mean < high
    assert one.answer == 'yes' and [*map(one.single_answer, one.contrasts)] == ['', '', 'yes']


def test_missing_runs_are_named():
    with pytest.raises(UserError, match='no runs of a'):
        found_of(runs(c=[.4, .5]), 'paired', {'pairs': [['a', 'c']]})


def test_methods_that_still_change_are_counted():
    found = runs(a=[.5] * 6, c=[.4] * 6)
    for method, last in (('a', .31), ('c', .304)):
        for run, _ in found['Omniglot', method].values():
            run.rows = [{'epoch': epoch, 'val_map_at_r': value} for epoch, value in ((0, .1), (20, .3), (25, .2))] + [
                run.rows[-1] | {'epoch': 30, 'val_map_at_r': last}]
    methods = questions.Methods(question('paired', {'pairs': [['a', 'c']]}), found)
    methods('pairs')
    assert questions.late_changes(methods.used) == pytest.approx([1.0, .4])
    one = found_of(found, 'paired', {'pairs': [['a', 'c']]})
    assert (one.changing, one.n_methods) == (1, 2)


def test_the_registered_questions(tmp_path):
    assert [one.primary for one in questions.load()].count(True) == 12
    for old, new in (('effect: spread', 'effect: guess'), ('expects: at most', 'expects: less')):
        (tmp_path / 'claims.yaml').write_text(questions.FILE.read_text().replace(old, new, 1))
        with pytest.raises(UserError, match=f'{new.replace(":", "")}: expected '):
            questions.load(tmp_path / 'claims.yaml')
