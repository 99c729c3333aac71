"""Losses of this program beside those of pytorch-metric-learning (pml), from the runs of Equality_Runs.sh."""
from pathlib import Path

from studies import methods
from studies.estimates import answer, average, mean_difference
from studies.pages import plus_minus, rounded
from utilities.text_tables import markdown

ROWS = Path(__file__).parent / 'rows' / 'equality.csv'
MARGIN = 0.3                                              # points: smaller differences count as equal
METRICS = {'R@1': 'e_recall@1', 'MAP@R': 'map_at_r'}
# rows of the tables: groups of the script without Equality_, and what differs apart from the code
PEERS = {'contrastive': ('contrastive_ours', 'contrastive_pml', 'nothing (our miner)'),
         'triplet': ('triplet_ours', 'triplet_pml', 'the miner'),
         'triplet, defaults': ('triplet_defaults_ours', 'triplet_defaults_pml', 'the miner and its defaults'),
         'multisimilarity': ('multisimilarity_ours', 'multisimilarity_pml', 'nothing'),
         'ntxent': ('ntxent_ours', 'ntxent_pml', 'nothing'),
         **{name: (f'{name}_ours', f'{name}_pml', 'initial class weights')
            for name in ('arcface', 'cosface', 'softmax', 'subcenter_arcface')},
         'softtriplet': ('softtriplet_ours', 'softtriplet_pml', 'initial centres'),
         'proxyanchor': ('proxyanchor_ours', 'proxyanchor_pml', 'nothing'),
         'proxynca_pp': ('proxynca_pp_ours', 'proxynca_pp_pml', 'initial size of the proxies')}
# learning rate at which Adam turns our class weights or proxies as fast as it turns pml's at 0.01
SLOW = {'arcface': 0.00051, 'cosface': 0.00051, 'softmax': 0.00051, 'subcenter_arcface': 0.00051,
        'proxynca_pp': 0.00125}
MINED = {name: (f'{name}_ours', f'{name}_mined_pml', what) for name, what in {
    'multisimilarity': 'pairs of the triplets only', 'ntxent': 'pairs of the triplets only',
    'arcface': 'samples weighted by their number of triplets'}.items()}
# standard deviation of the class weights or proxies at the start, with 128 dimensions and 40 classes: ours, pml's
STARTS = {'arcface': (0.051, 1.0), 'cosface': (0.051, 1.0), 'softmax': (0.051, 1.0), 'subcenter_arcface': (0.051, 1.0),
          'proxynca_pp': (0.125, 1.0), 'proxyanchor': (0.224, None), 'softtriplet': (0.065, None)}
RATES = {'_0.0001': 0.0001, '_0.001': 0.001, '': 0.01, '_0.1': 0.1}        # keys: the ends of the groups' names


def cells(found, one, other):
    """
    Returns [n, the difference in R@1, in MAP@R] of one group minus another, paired over n seeds, each ± half of its
    interval; in bold unless the interval lies within ± MARGIN.
    """
    gaps = [mean_difference([(found[one].values(metric), found[other].values(metric))]) for metric in METRICS.values()]
    texts = [plus_minus(gap, '+', 2) for gap in gaps]
    return [gaps[0].n, *(text if answer(gap, 'equal', MARGIN) == 'yes' else f'**{text}**'
                         for text, gap in zip(texts, gaps, strict=True))]


def pml_range(found):
    """Returns the sentence on the lowest and the highest mean over seeds of PML's losses."""
    ranges = []
    for title, metric in METRICS.items():
        means = [average(found[other].values(metric)).mean for _, other, _ in PEERS.values()]
        ranges.append(f'{title} from {rounded(min(means))} to {rounded(max(means))}')
    return f'At the last epoch, the losses of PML have {" and ".join(ranges)} (means over seeds).'


def by_rate(found, title):
    """Returns heading and table of a metric at each learning rate, over common seeds."""
    groups = {(loss, side): [found[f'{loss}{suffix}_{side}'] for suffix in RATES] for loss, sizes in STARTS.items()
              for side, size in zip(('ours', 'pml'), sizes, strict=True) if size}
    seeds = set.intersection(*(set(method.runs) for row in groups.values() for method in row))
    rows = []
    for names, row in groups.items():
        first, *others = [{unit: value for unit, value in method.values(METRICS[title]).items() if unit[1] in seeds}
                          for method in row]
        rows.append([*names, plus_minus(average(first), digits=2, tight=True),
                     *(plus_minus(mean_difference([(other, first)]), '+', 2, tight=True) for other in others)])
    return f'{title}, {len(seeds)} seeds:\n\n' + markdown(
        ['loss', 'start', *(f'rate {rate:g}' for rate in RATES.values())], rows)


def tables():
    """Returns {name: text} of the tables."""
    found = methods.read(ROWS, 'Equality_')
    gaps = [f'{name} Δ' for name in METRICS]
    return {
        'range': pml_range(found),
        **{name: markdown(['loss', 'n', *gaps, what],
                          [[loss, *cells(found, *sides), note] for loss, (*sides, note) in rows.items()])
           for name, rows, what in (('equality', PEERS, 'what differs'),
                                    ('miners', MINED, 'effect of the miner'))},
        'sizes': markdown(
            ['loss', 'slow rate', 'n', *gaps, *(f'{name}, slow minus pml' for name in METRICS)],
            [[loss, rate, *cells(found, f'{loss}_ours', f'{loss}_slow_ours'),
              *cells(found, f'{loss}_slow_ours', f'{loss}_pml')[1:]] for loss, rate in SLOW.items()]),
        'rates': '\n\n'.join(by_rate(found, title) for title in METRICS)}
