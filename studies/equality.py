"""
docs/equality.md: losses of this program beside those of pytorch-metric-learning, from the first step of a run
(benchmarks.equality) and from the final rows of studies/Equality_Runs.sh.

python -m studies.equality
"""
from pathlib import Path

import numpy as np

from benchmarks import equality as first_steps
from reports import final_rows, groups, significance
from studies import study
from studies.answers import count, markdown_table, p_of
from utilities.files import write_text

ROOT = Path(__file__).parents[1]
ROWS, PAGE = ROOT / 'studies' / 'rows' / 'equality.csv', ROOT / 'docs' / 'equality.md'
MARGIN = 0.3                                              # points: smaller differences count as equal
LEVEL = 0.05
METRICS = {'R@1': 'e_recall@1', 'MAP@R': 'map_at_r'}
FIRST_STEP, PEER = '## The first step', '## After training'                         # headings
EXPLAINED, OF_MINERS = '### The rate over the size of the start', '### A miner that was not asked for'
STARTING = '## Starts of class weights and proxies'
# rows of the tables: groups of the script without Equality_, and what is not the same on both sides
PEERS = {'contrastive': ('contrastive_ours', 'contrastive_pml', 'nothing: our miner draws the same triplets'),
         'triplet': ('triplet_ours', 'triplet_pml', 'the miner, with several positives of each anchor'),
         'triplet, defaults': ('triplet_defaults_ours', 'triplet_defaults_pml', 'the miner and its defaults'),
         'multisimilarity': ('multisimilarity_ours', 'multisimilarity_pml', 'nothing'),
         'ntxent': ('ntxent_ours', 'ntxent_pml', 'nothing'),
         **{name: (f'{name}_ours', f'{name}_pml', 'start of the class weights: numbers and size')
            for name in ('arcface', 'cosface', 'softmax', 'subcenter_arcface')},
         'softtriplet': ('softtriplet_ours', 'softtriplet_pml', 'start of the centres: numbers'),
         'proxyanchor': ('proxyanchor_ours', 'proxyanchor_pml', 'start of the proxies: nothing but the order of '
                         'operations'),
         'proxynca_pp': ('proxynca_pp_ours', 'proxynca_pp_pml', 'start of the proxies: numbers and size')}
SLOW = {name: (f'{name}_slow_ours', f'{name}_pml', rate) for name, rate in {
    'arcface': 0.00051, 'cosface': 0.00051, 'softmax': 0.00051, 'subcenter_arcface': 0.00051,
    'proxynca_pp': 0.00125}.items()}
MINED = {name: (f'{name}_ours', f'{name}_mined_pml', what) for name, what in {
    'multisimilarity': 'pairs of the triplets only', 'ntxent': 'pairs of the triplets only',
    'arcface': 'samples weighted by their number of triplets'}.items()}
# standard deviation of the class weights or proxies at the start, with 128 dimensions and 40 classes: ours, pml's
STARTS = {'arcface': (0.051, 1.0), 'cosface': (0.051, 1.0), 'softmax': (0.051, 1.0), 'subcenter_arcface': (0.051, 1.0),
          'proxynca_pp': (0.125, 1.0), 'proxyanchor': (0.224, None), 'softtriplet': (0.065, None)}
RATES = {'_0.0001': 0.0001, '_0.001': 0.001, '': 0.01, '_0.1': 0.1}          # by the end of the groups' names
LONG, LONGER = {f'_long_{rate}': rate for rate in (0.0001, 0.001, 0.01)}, ('arcface', 'softmax')


def gather():
    """{group without Equality_: Method} of the rows. Raises UserError if the runs have different test images."""
    methods, runs = {}, final_rows.read(ROWS)
    groups.require_one_test_set('Equality_*', runs)
    for run in runs:
        methods.setdefault(run.group.removeprefix('Equality_'), study.Method(run.group)).runs[run.seed] = run
    return methods


def verdict(pair, p):
    """Of a study.Difference and its corrected p: 'equal' if its 95 % interval lies within the margin."""
    low, high = 100 * (pair.mean - pair.half), 100 * (pair.mean + pair.half)
    if -MARGIN <= low and high <= MARGIN:
        return 'equal'
    return 'different' if (low > MARGIN or high < -MARGIN) and p < LEVEL else 'undecided'


def number(value, sign=''):
    return f'{100 * value:{sign}.2f}'


def comparison(methods, rows, what):
    """The table of rows {title: (group of ours, group of pml, what)}; the heading of the last is `what`."""
    heads = ['loss', 'seeds', *(f'{name} {side}' for name in METRICS for side in ('ours', 'pml', 'Δ', 'p', 'verdict')),
             what]
    cells = {title: [] for title in rows}
    for metric in METRICS.values():
        sides = {title: [methods[group].values(metric) for group in pair[:2]] for title, pair in rows.items()}
        pairs = {title: study.difference(*both) for title, both in sides.items()}
        for (title, pair), p in zip(pairs.items(), study.corrected(pairs.values()), strict=True):
            means = [number(np.mean([side[seed] for seed in sides[title][0].keys() & side.keys()]))
                     for side in sides[title]]
            cells[title] += [*means, f'{number(pair.mean, "+")} ± {number(pair.half)}', p_of(p), verdict(pair, p)]
    n_seeds = {title: len(methods[ours].runs.keys() & methods[theirs].runs) for title, (ours, theirs, _) in rows.items()}
    return markdown_table(heads, [[title, n_seeds[title], *cells[title], rows[title][2]] for title in rows])


def by_rate(methods, title, rates, losses):
    """The lines of a table: the metric `title` at each rate, {suffix of the groups: rate}, over seeds that all have."""
    found = {(loss, side): [methods[f'{loss}{suffix}_{side}'] for suffix in rates] for loss in losses
             for side, size in zip(('ours', 'pml'), STARTS[loss], strict=True) if size}
    seeds = sorted(set.intersection(*(set(method.runs) for row in found.values() for method in row)))
    rows = []
    for (loss, side), row in found.items():
        values = [[method.values(METRICS[title])[seed] for seed in seeds] for method in row]
        rows.append([loss, side, f'{STARTS[loss][side == "pml"]:g}',
                     *(f'{number(np.mean(one))} ± {number(significance.t_interval(one)[1])}' for one in values)])
    return [f'{title}, {count(len(seeds), "seed")}:', '', *markdown_table(
        ['loss', 'start', 'its size', *(f'rate {rate:g}' for rate in rates.values())], rows), '']


def lines_of(methods):
    """The lines of the page."""
    runs = [run for method in methods.values() for run in method.runs.values()]
    versions = '; '.join(dict.fromkeys(study.packages(run.flags['versions']) for run in runs))
    others = [f'{name}: {reason}' for name, reason in first_steps.OTHERS.items()]
    return [
        *INTRODUCTION.splitlines(), '', FIRST_STEP, '', first_steps.conditions(), '',
        *markdown_table(first_steps.HEADS, first_steps.compared()), '',
        f'Not compared, since the library computes another loss: {"; ".join(others)}.', '', *STEPS.splitlines(), '',
        PEER, '', *SETTING.format(runs=count(len(runs), 'run'), versions=versions).splitlines(), '',
        *comparison(methods, PEERS, 'what is not the same'), '', *DIFFERENCES.splitlines(), '',
        EXPLAINED, '', *RATIO.splitlines(), '', *comparison(methods, SLOW, 'our rate'), '',
        OF_MINERS, '', *ACCIDENT.splitlines(), '', *comparison(methods, MINED, 'effect of the miner'), '',
        STARTING, '', *BY_RATE.splitlines(), '',
        *by_rate(methods, 'R@1', RATES, STARTS), *by_rate(methods, 'MAP@R', RATES, STARTS),
        '25 epochs instead of 5:', '',
        *by_rate(methods, 'R@1', LONG, LONGER), *by_rate(methods, 'MAP@R', LONG, LONGER),
        *ADVICE.splitlines(), '',
        *REPRODUCTION.splitlines()]


if __name__ == '__main__':
    write_text(PAGE, '\n'.join(lines_of(gather())) + '\n')
    print(f'page: {PAGE}')
