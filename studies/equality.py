"""
docs/equality.md: losses of this program beside those of pytorch-metric-learning, from the first step of a run
(benchmarks.equality) and from the final rows of studies/Equality_Runs.sh.

python -m studies.equality
"""
from collections import Counter
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
SIZES, RATIOS = '### The size of the start', '### The same learning rate over size'
OF_MINERS, STARTING = '### A miner that was not asked for', '## Learning rates of class weights and proxies'
# rows of the tables: groups of the script without Equality_, and what is not the same on both sides
PEERS = {'contrastive': ('contrastive_ours', 'contrastive_pml', 'nothing: our miner on both sides'),
         'triplet': ('triplet_ours', 'triplet_pml', 'the miner'),
         'triplet, defaults': ('triplet_defaults_ours', 'triplet_defaults_pml', 'the miner and its defaults'),
         'multisimilarity': ('multisimilarity_ours', 'multisimilarity_pml', 'nothing'),
         'ntxent': ('ntxent_ours', 'ntxent_pml', 'nothing'),
         **{name: (f'{name}_ours', f'{name}_pml', 'start of the class weights: size and numbers')
            for name in ('arcface', 'cosface', 'softmax', 'subcenter_arcface')},
         'softtriplet': ('softtriplet_ours', 'softtriplet_pml', 'start of the centres: numbers'),
         'proxyanchor': ('proxyanchor_ours', 'proxyanchor_pml', 'nothing'),
         'proxynca_pp': ('proxynca_pp_ours', 'proxynca_pp_pml', 'size of the proxies at the start')}
SLOW = {'arcface': 0.00051, 'cosface': 0.00051, 'softmax': 0.00051, 'subcenter_arcface': 0.00051,
        'proxynca_pp': 0.00125}
SIZE = {name: (f'{name}_ours', f'{name}_slow_ours', rate) for name, rate in SLOW.items()}
RATIO = {name: (f'{name}_slow_ours', f'{name}_pml', rate) for name, rate in SLOW.items()}
MINED = {name: (f'{name}_ours', f'{name}_mined_pml', what) for name, what in {
    'multisimilarity': 'pairs of the triplets only', 'ntxent': 'pairs of the triplets only',
    'arcface': 'samples weighted by their number of triplets'}.items()}
# standard deviation of the class weights or proxies at the start, with 128 dimensions and 40 classes: ours, pml's
STARTS = {'arcface': (0.051, 1.0), 'cosface': (0.051, 1.0), 'softmax': (0.051, 1.0), 'subcenter_arcface': (0.051, 1.0),
          'proxynca_pp': (0.125, 1.0), 'proxyanchor': (0.224, None), 'softtriplet': (0.065, None)}
RATES = {'_0.0001': 0.0001, '_0.001': 0.001, '': 0.01, '_0.1': 0.1}          # by the end of the groups' names
LONG, LONGER = {f'_long_{rate}': rate for rate in (0.0001, 0.001, 0.01)}, ('arcface', 'softmax')

INTRODUCTION = """\
# Equality with pytorch-metric-learning

This program and pytorch-metric-learning (pml) have 20 losses in common that compute the same. The page compares
their first steps, and R@1 and MAP@R after training. `python -m studies.equality` writes it from
`studies/rows/equality.csv` and `benchmarks.equality`."""
STEPS = """\
Both sides get the same 112 random embeddings of norm 1 from 56 classes, the same tuples, and the same proxies or
class weights; given means 112 random triplets, all means every triplet or pair. The gradient is by the embeddings.
What remains is rounding, and in `softtriplet` the 1e-5 that this program adds under a root. At `--size 512`, with
four samples of each class, only the gradient of `histogram` differs by more, 2e-06, since the library finds the bin
of a similarity in float32."""
SETTING = """\
{runs} train an embedding layer of 128 dimensions on the pooled features of a frozen MobileNetV2: 2,979 grocery
photos of 40 classes, at 64 pixels and without augmentation, in batches of 20 classes with 4 photos each, for 5
epochs (185 steps of Adam) at the learning rate 0.0004. R@1 and MAP@R, in percent, are those of 2,442 photos of 41
other classes at the last epoch. Before training, R@1 is 67.2 and MAP@R 13.3 (seed 0).

`studies/Equality_Runs.sh` has the flags: both sides have the same arguments and the learning rate 0.01 for class
weights and proxies. A pair of runs has one seed, and so the same embedding layer at the start and the same batches.

- Δ is ours minus pml in points, in the mean over seeds, ± half of its 95 % interval, paired over seeds (Student's
  t).
- p is that of the paired t-test, corrected by Holm's method over the losses of a table.
- equal: the interval lies within ±0.3 points (two one-sided tests at the level 2.5 %). different: the interval lies
  beyond, and p is below 0.05. undecided: neither.

Machine and packages: {versions}."""
DIFFERENCES = """\
- **The same random numbers.** In contrastive, multisimilarity, ntxent and proxyanchor, both sides start from the
  same numbers and use the same tuples. Only the order of the operations differs.
- **Other random numbers.** The miners of triplet draw other triplets, in the first row with equal settings: ours
  takes each of the three positives of an anchor, the library draws four with replacement. By default, ours draws
  one positive, and the library leaves out negatives at a distance beyond 1.4. The centres of softtriplet have other
  random numbers from the same distribution.
- **Another size.** The class weights of arcface, cosface, softmax and subcenter_arcface are uniform in ±1/√D at the
  start, and standard normal in the library. The proxies of proxynca_pp are an eighth of the library's, with the
  same random numbers."""
OF_SIZES = """\
These losses normalise class weights and proxies, so that only their directions count. A step of Adam changes each
weight by about the learning rate, whatever the size of the gradient. A step therefore turns the weights by an angle
of about the learning rate over their size, the standard deviation at the start: with 128 dimensions 0.051 for our
class weights and 1 for the library's, and for proxynca_pp 0.125 and 1. At the same learning rate, our class weights
turn 20 times as fast, and our proxies of proxynca_pp 8 times.

The table has the effect of this alone: our losses at the rate 0.01 (ours), and with the same random numbers at 0.01
times their size (slow), the rate at which they turn as fast as the library's at 0.01."""
OF_RATIOS = """\
Our losses at the slow rate, and the library's at 0.01: only the random numbers of the class weights differ. For
proxynca_pp, these are the same too."""
ACCIDENT = """\
`--batch_mining` is `distance` by default, also with `--loss pml:NAME`. A loss of the library that needs no tuples
then gets triplets, and uses them: pair losses take only the pairs of the triplets, and losses of single samples
weight each sample by the number of its triplets. In the tables above, the library's losses have `--batch_mining
none`, contrastive and triplet a miner of triplets, and multisimilarity the library's own miner. Here, ours is as
above, and pml has the default miner."""
BY_RATE = """\
Seven losses at several learning rates of their class weights or proxies. The first column has the mean ± half of
its 95 % interval over seeds at the rate 0.0001, which hardly moves the weights; the other columns have differences
from it, paired over seeds. Rows of two starts differ in their random numbers, too: compare along rows. softtriplet
and proxyanchor have the same start on both sides."""
ADVICE = """\
- No start is better for all of these losses, and the differences are below one point. Fast class weights, from a
  small start or a high rate, have a higher R@1 in softmax and proxynca_pp, and a lower MAP@R in cosface, softmax
  and proxynca_pp. In arcface they have a lower R@1, more so after 25 epochs than after 5.
- A start needs no flag: with Adam, another learning rate has the same effect. `--loss_arcface_lr`,
  `--loss_cosface_lr` and `--loss_subcenter_arcface_lr` have the default 0.0005, which is the library's 0.01 at 128
  dimensions.
- To repeat a setting of the library with Adam, multiply its learning rate by our size: 1/√(3 D) for arcface,
  cosface, softmax and subcenter_arcface, 1/8 for proxynca_pp. For proxyanchor and softtriplet, take it as it is.
- proxyanchor needs a fast rate: at 0.0001, R@1 and MAP@R are lower than at 0.01 by more than half a point."""
REPRODUCTION = """\
## How to reproduce

```bash
DATA=Datasets ./studies/Equality_Runs.sh --list > equality.sh
python Launch_Runs.py equality.sh --workers 2
python Result_Evaluations.py --runs Training_Results --only Equality_ --metrics e_recall@1 map_at_r \\
    --rows studies/rows/equality.csv
python -m studies.equality
```

[study.md](study.md) says which data the folder `Datasets` holds. A run takes 7 to 10 seconds on one thread, most of
it for the features of the backbone. These are the same in all runs, and were computed only once for the rows of
this page; ten of the runs were repeated as above, with the same digits."""


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


def between(mean, half, sign=''):
    return f'{number(mean, sign)} ± {number(half)}'


def comparison(methods, rows, what, sides=('ours', 'pml')):
    """The table of rows {title: (group of one side, of the other, what)}; the heading of the last is `what`."""
    heads = ['loss', 'seeds', *(f'{name} {cell}' for name in METRICS for cell in (*sides, 'Δ', 'p', 'verdict')), what]
    cells = {title: [] for title in rows}
    for metric in METRICS.values():
        values = {title: [methods[group].values(metric) for group in pair[:2]] for title, pair in rows.items()}
        pairs = {title: study.difference(*both) for title, both in values.items()}
        for (title, pair), p in zip(pairs.items(), study.corrected(pairs.values()), strict=True):
            seeds = values[title][0].keys() & values[title][1].keys()
            means = [number(np.mean([side[seed] for seed in seeds])) for side in values[title]]
            cells[title] += [*means, between(pair.mean, pair.half, '+'), p_of(p), verdict(pair, p)]
    return markdown_table(heads, [[title, pair.n, *cells[title], rows[title][2]] for title, pair in pairs.items()])


def counted(table):
    """How many rows of a comparison() have each verdict, for each metric."""
    heads, _, *rows = [line.strip('| ').split(' | ') for line in table]
    found = {metric: Counter(row[heads.index(f'{metric} verdict')] for row in rows) for metric in METRICS}
    return '; '.join(f'{metric}: ' + ', '.join(f'{n[word]} {word}' for word in ('equal', 'different', 'undecided'))
                     for metric, n in found.items())


def by_rate(methods, title, rates, losses):
    """The lines of a table: the metric `title` at each rate, {suffix of the groups: rate}, over seeds that all have."""
    found = {(loss, side): [methods[f'{loss}{suffix}_{side}'] for suffix in rates] for loss in losses
             for side, size in zip(('ours', 'pml'), STARTS[loss], strict=True) if size}
    seeds = sorted(set.intersection(*(set(method.runs) for row in found.values() for method in row)))
    rows = []
    for (loss, side), row in found.items():
        first, *others = [np.array([method.values(METRICS[title])[seed] for seed in seeds]) for method in row]
        rows.append([loss, side, f'{STARTS[loss][side == "pml"]:g}', between(*significance.t_interval(first)),
                     *(between(*significance.t_interval(values - first), '+') for values in others)])
    return [f'{title}, {count(len(seeds), "seed")}:', '', *markdown_table(
        ['loss', 'start', 'its size', *(f'rate {rate:g}' for rate in rates.values())], rows), '']


def lines_of(methods):
    """The lines of the page."""
    runs = [run for method in methods.values() for run in method.runs.values()]
    versions = '; '.join(dict.fromkeys(study.packages(run.flags['versions']) for run in runs))
    others = [f'{name}: {reason}' for name, reason in first_steps.OTHERS.items()]
    peers = comparison(methods, PEERS, 'what is not the same')
    return [
        *INTRODUCTION.splitlines(), '', FIRST_STEP, '', first_steps.conditions(), '',
        *markdown_table(first_steps.HEADS, first_steps.compared()), '',
        f'Not compared, since the library computes another loss: {"; ".join(others)}.', '', *STEPS.splitlines(), '',
        PEER, '', *SETTING.format(runs=count(len(runs), 'run'), versions=versions).splitlines(), '',
        *peers, '', f'Pairs by verdict: {counted(peers)}.', '', *DIFFERENCES.splitlines(), '',
        SIZES, '', *OF_SIZES.splitlines(), '', *comparison(methods, SIZE, 'slow rate', ('ours', 'slow')), '',
        RATIOS, '', *OF_RATIOS.splitlines(), '', *comparison(methods, RATIO, 'our rate'), '',
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
