"""The questions that the study answers, as sentences and small tables with intervals and tests."""
import itertools
import math

import numpy as np
from scipy import stats

from evaluation import titles
from records.columns import Column
from reports import differences, significance, tables
from studies import study
from studies.study import BASELINES, CORRELATES, LOSSES, RECALL, SECTIONS
from utilities.errors import UserError

NAME = Column('test', RECALL).name
LEVEL = 0.05
FORMS = ('separated', 'concatenated')
SHOWN = ('e_recall@1', 'map_at_r')                                # metrics of the ensembles
TUNED = """\
As in Musgrave et al., ECCV 2020: for each loss, `Study_Searches.sh` tunes the learning rate and one or two flags on two
folds of the classes that are not test classes, and trains the best setting with new seeds. Separated: the mean over the
networks of the folds; concatenated: their embeddings, concatenated ([ensembles.md](ensembles.md)). ± is half of the
95 % interval over seeds; Δ is concatenated minus separated, paired over seeds. Each network of a fold is trained on
half of the classes of protocol 1, and with two thirds of its iterations."""


def answers(found, folds):
    """The lines of all answers. found: Study; folds: the lines of --folds."""
    questions = {
        'Is the variance between losses larger than between seeds?': losses_differ(found),
        'Which metrics correlate with R@1?': correlations(found),
        'How much do ρ-regularisation, direction regularisation and batch samplers change R@1?': worth(found),
        'How much does training improve the network?': beyond_baseline(found),
        'How much does selecting the epoch on the test classes add?': gaps(found),
        'Does the best miner depend on the loss?': miners(found),
        'Does tuning the hyper-parameters change the ranking?': rankings(found, folds)}
    return [line for question, lines in questions.items() for line in (f'### {question}', '', *lines, '')]


def losses_differ(found):
    lines = []
    for _, data, methods in found.correlated():
        methods = [method for method in methods if len(method.runs) > 1]
        if len(methods) < 2:
            continue
        samples = [list(method.values().values()) for method in methods]
        icc, low, high = study.intraclass(samples)
        test = stats.kruskal(*samples)
        pairs = significance.holm([significance.welch_test(one, other)
                                   for one, other in itertools.combinations(samples, 2)])
        means = {method.name: method.mean() for method in methods}
        worst, best = min(means, key=means.get), max(means, key=means.get)
        spreads = {method.name: float(np.std(values, ddof=1)) for method, values in zip(methods, samples, strict=True)}
        widest = max(spreads, key=spreads.get)
        lines.append(f'- {study.named(data)}, {len(methods)} losses: mean R@1 ranges from {points(means[worst])} '
                     f'({worst}) to {points(means[best])} ({best}). The standard deviation over seeds is '
                     f'{points(float(np.median(list(spreads.values()))))} in the median and at most '
                     f'{points(spreads[widest])} ({widest}). The intraclass correlation, which is the fraction of the '
                     f'variance of R@1 between losses, is {icc:.2f} (95 % interval {low:.2f} to {high:.2f}). The '
                     f'Kruskal-Wallis test of equal distributions gives {p_phrase(test.pvalue)}. '
                     f'{sum(p < LEVEL for p in pairs)} of {len(pairs)} pairs of losses differ significantly (Welch\'s '
                     f't-test, p < {LEVEL} after Holm\'s correction); with so few seeds, the others may differ too.')
    return lines or [nothing(LOSSES)]


def correlations(found):
    rows = []
    for _, data, methods in found.correlated():
        for metric in CORRELATES:
            values = [[method.mean(one) for method in methods] for one in (metric, RECALL)]
            rows += [(data, titles.metric(Column('test', metric).name), kind, study.correlation(*values, kind))
                     for kind in ('Pearson', 'Spearman')]
    if not rows:
        return [nothing(LOSSES)]
    corrected = significance.holm([one.p for *_, one in rows])
    return ['Correlations over losses of the means over seeds at the last epoch, all on the test classes. rho@1 is the '
            'spectral decay ρ of Roth et al. (2020); intra/inter is the ratio of the mean distances within and between '
            'classes, of which less is better. Losses for which a metric is infinite are left out. The interval is '
            'from a bootstrap over losses; p belongs to the test of zero correlation and is corrected by Holm\'s '
            'method over the table. A single loss can decide a correlation: see the figures.', '',
            *markdown_table(['data', 'R@1 and', 'losses', 'coefficient', 'value', '95 % interval', 'p'], [
                [study.named(data), metric, one.n, kind, f'{one.value:.2f}', f'{one.low:.2f} to {one.high:.2f}',
                 p_of(p)]
                for (data, metric, kind, one), p in zip(rows, corrected, strict=True)])]


def worth(found):
    """Tables of differences: of the rho switch, of direction regularisation, and of samplers."""
    def pairs(data, names):
        methods = [(found.found(data, one), found.found(data, other)) for one, other in names]
        return [(one, other) for one, other in methods if one and other]

    losses = [name for name in study.EXTENDS if name.endswith('_rho_distance')]
    directed = [name for name, other in study.EXTENDS.items() if name.startswith('DR_') and other]
    kinds = {'ρ-regularisation': [(name, study.EXTENDS[name]) for name in losses],
             'Direction regularisation': [(name, study.EXTENDS[name]) for name in directed],
             'Samplers': [(method.name, 'MS_class_random') for method in found.methods.values()
                          if method.group in found.sections.get('samplers', {}).get(method.data, [])
                          and method.name != 'MS_class_random']}
    lines = ['Differences of R@1 in points, paired over seeds; p is corrected by Holm\'s method over each table. '
             'Direction regularisation is compared with the same loss at γ = 0, so that margin, distance and scale are '
             'equal.']
    for title, names in kinds.items():
        compared = pairs('Omniglot', names)
        if not compared:
            lines += ['', f'{title}: no runs.']
            continue
        rows = [(one.name, other.name, study.difference(one.values(), other.values())) for one, other in compared]
        corrected = study.corrected([row[-1] for row in rows])
        lines += ['', *markdown_table([title, 'against', 'seeds', 'Δ R@1', 'p'], [
            [one, other, pair.n if pair else 0, signed(pair), p_of(p)]
            for (one, other, pair), p in zip(rows, corrected, strict=True)])]
        if title != 'Samplers':
            mean = study.difference(*(study.mean_over([method.values() for method in side])
                                      for side in zip(*compared, strict=True)))
            lines += ['', f'The mean over these {len(compared)} losses is {signed(mean)} ({p_phrase(mean.p)}, n = '
                      f'{mean.n} seeds).' if mean else f'{title}: the losses have no seed in common.']
    if found.found('Omniglot', 'MS') and found.found('Omniglot', 'MS_class_random'):
        lines += ['', 'MS samples its batches by class_random, so that MS_class_random repeats MS.']
    return lines


def beyond_baseline(found):
    lines = []
    for data, name in BASELINES.items():
        baseline, methods = found.found(data, name), found.trained(data)
        if not baseline or not methods:
            lines.append(f'- {study.named(data)}: no runs of {name if methods else "trained networks"}.')
            continue
        pairs = [study.difference(method.values(), baseline.values()) for method in methods]
        means = {method.name: pair.mean for method, pair in zip(methods, pairs, strict=True) if pair}
        corrected = study.corrected(pairs)
        beyond = [pair.mean for pair, p in zip(pairs, corrected, strict=True) if pair and p < LEVEL]
        worst, best = min(means, key=means.get), max(means, key=means.get)
        lines.append(f'- {study.named(data)}: {sum(one > 0 for one in beyond)} of {len(methods)} methods have a '
                     f'significantly higher R@1 than {name} ({text_of(*baseline.interval())}), and '
                     f'{sum(one < 0 for one in beyond)} a significantly lower R@1 (paired t-test over seeds, '
                     f'p < {LEVEL} after Holm\'s correction). The mean difference over methods is '
                     f'{tables.signed(float(np.mean(list(means.values()))), NAME, 1)} points, from '
                     f'{tables.signed(means[worst], NAME, 1)} ({worst}) to {tables.signed(means[best], NAME, 1)} '
                     f'({best}).')
    return lines


def gaps(found):
    lines = []
    for data in BASELINES:
        methods = found.trained(data)
        if not methods:
            lines.append(f'- {study.named(data)}: no runs.')
            continue
        if max(len(method.curve()[0]) for method in methods) < 3:
            lines.append(f'- {study.named(data)}: R@1 was computed only before training and after the last epoch.')
            continue
        of = {method.name: method.mean_at_best() - method.mean() for method in methods}
        largest = max(of, key=of.get)
        rank = study.correlation([method.mean() for method in methods], [method.mean_at_best() for method in methods],
                                 'Spearman')
        lines.append(f'- {study.named(data)}: the best test epoch of each run has a higher R@1 than the last epoch by '
                     f'{points(float(np.mean(list(of.values()))))} points in the mean over {len(of)} methods, and by '
                     f'at most {points(of[largest])} ({largest}). Spearman\'s rank correlation of the two is '
                     f'{rank.value:.2f}. Longer training can give larger differences.')
    return lines


def miners(found):
    losses = ('triplet', 'margin')
    groups = [found.methods[group] for group in found.sections.get('miners', {}).get('Omniglot', [])]
    names = dict.fromkeys(method.name.partition('_')[2] for method in groups)
    rows = {name: [found.found('Omniglot', f'{loss}_{name}') for loss in losses] for name in names}
    rows = {name: methods for name, methods in rows.items() if any(methods)}
    if not rows:
        return [nothing(['miners'])]
    columns = [[method.mean() for method in column if method] for column in zip(*rows.values(), strict=True)]
    best = [max(column, default=math.nan) for column in columns]
    cells = [[name, *('' if not method else f'**{text_of(*method.interval())}**' if method.mean() == top
                      else text_of(*method.interval()) for method, top in zip(methods, best, strict=True))]
             for name, methods in rows.items()]
    both = [methods for methods in rows.values() if all(methods)]
    rank = study.correlation(*([method.mean() for method in column] for column in zip(*both, strict=True)), 'Spearman'
                             ) if both else study.Correlation(*[math.nan] * 4, 0)
    lines = ['R@1 on Omniglot at the last epoch, ± half of the 95 % interval over seeds:', '',
             *markdown_table(['miner', *losses], cells)]
    if len(both) > 1:
        spreads = [f'{points(max(column) - min(column))} points for {loss}'
                   for column, loss in zip(columns, losses, strict=True)]
        lines += ['', f'The best and the worst miner differ by {listed(spreads)}. Spearman\'s rank correlation of the '
                  f'two columns is {correlation_text(rank)}.']
    return lines


def ensembles(folds):
    """{group: {(form, metric): {seed: value}}} of the lines of --folds. Raises UserError for another file."""
    found = {}
    try:
        for line in folds:
            values = found.setdefault(line['group'], {})
            for form, metric in itertools.product(FORMS, SHOWN):
                values.setdefault((form, metric), {})[int(line['seed'])] = float(
                    line[f'{form}_{Column("test", metric).name}'])
    except (KeyError, TypeError, ValueError):
        raise UserError('--folds: not a file that Evaluate_Ensemble.py --rows wrote with --evaluation_metrics '
                        f'{" ".join(SHOWN)}') from None
    return found


def rankings(found, folds):
    """The agreement between the ranking by tuned ensembles and the ranking by protocol 1."""
    if not folds:
        return ['The searches have not been run.']
    tuned = {group: values for group, values in ensembles(folds).items()
             if group in found.methods and found.methods[group].runs}
    lines = []
    for form in FORMS:
        values = [[found.methods[group].mean() for group in tuned],
                  [mean_of(values[form, RECALL]) for values in tuned.values()]]
        texts = [f'{kind} {correlation_text(study.correlation(*values, kind))}' for kind in ('Spearman', 'Kendall')]
        lines.append(f'- {form.capitalize()} networks: the rank correlation with protocol 1 over {len(tuned)} losses '
                     f'is {" and ".join(texts)}.')
    gain = study.difference(*(study.mean_over([values[form, RECALL] for values in ensembles(folds).values()])
                              for form in FORMS[::-1]))
    if gain:
        lines.append(f'- The mean difference over losses between concatenated and separated networks is {signed(gain)} '
                     f'points ({p_phrase(gain.p)}, n = {gain.n} seeds).')
    return lines


def of_folds(found, folds):
    """The table of protocol 2."""
    if not folds:
        return ['The searches of studies/Study_Searches.sh have not been run.']
    rows = []
    for group, values in ensembles(folds).items():
        method = found.methods.get(group)
        pair = study.difference(*(values[form, RECALL] for form in FORMS[::-1]))
        rows.append([group.partition('_')[2], pair.n,
                     text_of(*method.interval()) if method and method.runs else '',
                     *(text_of(*significance.t_interval(list(values[form, metric].values())))
                       for form, metric in itertools.product(FORMS, SHOWN)),
                     signed(pair), f'`{setting_of(next(line for line in folds if line["group"] == group))}`'])
    heads = [f'{form}, {titles.metric(Column("test", metric).name)}'
             for form, metric in itertools.product(FORMS, SHOWN)]
    return [TUNED, '', *markdown_table(['loss', 'seeds', 'protocol 1, R@1', *heads, 'Δ R@1', 'best setting'], rows)]


def setting_of(line):
    """The flags that a search tuned, which come before --fold in the command of a run, with three digits."""
    words = itertools.takewhile(lambda word: not word.startswith('--fold='), line['command'].split())
    pairs = [word.removeprefix('--').split('=', 1) for word in words if '=' in word]
    return ' '.join(f'--{flag} {float(value):.3g}' for flag, value in pairs)


def mean_of(values):
    return float(np.mean(list(values.values())))


def nothing(sections):
    return f'No runs, or too few, of the sections {listed(SECTIONS[one][0] for one in sections)}.'


def points(value):
    return tables.printed(value, NAME, 1)


def text_of(mean, half):
    return points(mean) + ('' if math.isnan(half) else f' ± {points(half)}')


def signed(pair):
    """A Difference as '+1.2 ± 0.3'; '' for None."""
    return '' if pair is None else differences.text_of(pair.mean, pair.half, NAME, 1)


def p_of(p):
    return '' if math.isnan(p) else '< 0.001' if p < 0.001 else f'{p:.3f}'


def p_phrase(p):
    return 'no test' if math.isnan(p) else f'p {p_of(p)}' if p < 0.001 else f'p = {p_of(p)}'


def correlation_text(one):
    if math.isnan(one.value):
        return f'not defined ({one.n} points)'
    return f'{one.value:.2f} (95 % interval {one.low:.2f} to {one.high:.2f}, {p_phrase(one.p)})'


def count(n, word):
    """'1 run', '2 runs'"""
    return f'{n} {word}{"s" * (n != 1)}'


def listed(words):
    """'a, b and c'"""
    *first, last = words
    return f'{", ".join(first)} and {last}' if first else last


def markdown_table(heads, rows):
    return [f'| {" | ".join(map(str, row))} |' for row in (heads, ['---'] * len(heads), *rows)]
