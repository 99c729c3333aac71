"""Losses of this program beside those of pytorch-metric-learning (pml), from the runs of Equality_Runs.sh."""
from pathlib import Path

from reports import significance
from studies import methods
from studies.estimates import answer, average, mean_difference
from studies.pages import p_text, plus_minus
from utilities.text_tables import markdown

ROWS = Path(__file__).parent / 'rows' / 'equality.csv'
MARGIN = 0.3                                              # points: smaller differences count as equal
METRICS = {'R@1': 'e_recall@1', 'MAP@R': 'map_at_r'}
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
RATES = {'_0.0001': 0.0001, '_0.001': 0.001, '': 0.01, '_0.1': 0.1}        # keys: the ends of the groups' names
LONG, LONGER = {f'_long_{rate}': rate for rate in (0.0001, 0.001, 0.01)}, ('arcface', 'softmax')


def comparison(found, rows, what, sides=('ours', 'pml')):
    """
    Returns the table of rows {title: (group of one side, of the other, what)}: for each metric the two means, their
    difference, paired over seeds, its p, corrected by Holm's method over the rows, and the place of its interval.
    """
    cells = {title: [] for title in rows}
    for metric in METRICS.values():
        pairs = {title: [found[group].values(metric) for group in groups[:2]] for title, groups in rows.items()}
        gaps = {title: mean_difference([pair]) for title, pair in pairs.items()}
        for (title, gap), p in zip(gaps.items(), significance.holm([one.p() for one in gaps.values()]), strict=True):
            units = pairs[title][0].keys() & pairs[title][1].keys()
            means = [average({unit: side[unit] for unit in units}).mean for side in pairs[title]]
            cells[title] = [gap.n, *cells[title][1:], *(f'{mean:.2f}' for mean in means), plus_minus(gap, '+', 2),
                            p_text(p), answer(gap, 'equal', MARGIN)[0]]
    heads = ['loss', 'n', *(f'{name} {cell}' for name in METRICS for cell in (*sides, 'Δ', 'p', 'is')), what]
    return heads, [[title, *cells[title], rows[title][2]] for title in rows]


def short(heads, rows):
    """Returns a table without the means of the sides and the p-values."""
    kept = [index for index, head in enumerate(heads) if not head.endswith((' p', ' ours', ' pml', ' slow'))]
    return markdown([heads[index] for index in kept], [[row[index] for index in kept] for row in rows])


def by_rate(found, title, rates, losses):
    """Returns heading and table of a metric at each of `rates`, {suffix of the groups: rate}, over common seeds."""
    groups = {(loss, side): [found[f'{loss}{suffix}_{side}'] for suffix in rates] for loss in losses
              for side, size in zip(('ours', 'pml'), STARTS[loss], strict=True) if size}
    seeds = set.intersection(*(set(method.runs) for row in groups.values() for method in row))
    rows = []
    for (loss, side), row in groups.items():
        first, *others = [{unit: value for unit, value in method.values(METRICS[title]).items() if unit[1] in seeds}
                          for method in row]
        rows.append([loss, side, f'{STARTS[loss][side == "pml"]:g}', plus_minus(average(first), digits=2),
                     *(plus_minus(mean_difference([(other, first)]), '+', 2) for other in others)])
    return f'{title}, {len(seeds)} seeds:\n\n' + markdown(
        ['loss', 'start', 'its size', *(f'rate {rate:g}' for rate in rates.values())], rows)


def tables():
    """Returns {name: text} of the tables."""
    found = methods.read(ROWS, 'Equality_')
    peers = comparison(found, PEERS, 'what is not the same')
    sizes = comparison(found, SIZE, 'slow rate', ('ours', 'slow'))
    return {
        'equality': short(*peers), 'sizes': short(*sizes),
        'equality, whole': markdown(*peers), 'sizes, whole': markdown(*sizes),
        'ratios': markdown(*comparison(found, RATIO, 'our rate')),
        'miners': markdown(*comparison(found, MINED, 'effect of the miner')),
        'rates': '\n\n'.join(by_rate(found, title, RATES, STARTS) for title in METRICS),
        'rates, longer': '\n\n'.join(by_rate(found, title, LONG, LONGER) for title in METRICS)}
