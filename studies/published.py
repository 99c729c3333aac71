"""What the published table of Roth et al., ICML 2020, answers by itself: reports/published/roth2020.csv, in tables."""
import itertools
import math
from typing import NamedTuple

from scipy import stats

from reports import naming, published, significance
from studies.pages import rounded
from utilities.text_tables import markdown

RECALL, DECAY = 'test_e_recall@1', 'train_rho_spectrum@2'
REGULARISED = '_Rho_'                                                   # in the names of the lines with rho_distance
# CUB, Cars, SOP: the correlations printed in their repository's Images/comp_metric_relation.png, over the losses
PRINTED = {'cub200': (-.80, .79), 'cars196': (-.85, .65), 'online_products': (-.63, .22)}


class Setting(NamedTuple):
    """A loss on a data set. recall, error: mean and standard error of R@1 over n seeds, in points."""
    name: str
    loss: str
    recall: float
    error: float
    n: int
    decay: float

    @property
    def is_regularised(self):
        return REGULARISED in self.name


def read():
    """Returns {data set: [Setting]} of the 23 settings."""
    lines = published.read('roth2020')
    found = {}
    for (dataset, group), values in lines.groupby(['data_set', 'group'], sort=False):
        by_column = {line.column: line for line in values.itertuples()}
        recall = by_column[RECALL]
        found.setdefault(dataset, []).append(Setting(
            group, recall.loss, recall.value, 100 * recall.error, int(recall.n_published), by_column[DECAY].value))
    return found


def gap(one, other):
    """Returns (one minus other, half the width of its 95 % interval) of the R@1 of two Settings, by Welch's t."""
    return one.recall - other.recall, significance.welch_half_width([one.error, other.error], [one.n - 1, other.n - 1])


def plain(settings):
    return [one for one in settings if not one.is_regularised]


def spread_table(found):
    """Returns the table of the spread over the losses without rho-regularisation."""
    rows = []
    for dataset, settings in found.items():
        losses = sorted(plain(settings), key=lambda one: one.recall)
        pairs = [gap(one, other) for one, other in itertools.combinations(losses, 2)]
        middle = losses[len(losses) // 4:-(len(losses) // 4)]
        rows.append([naming.dataset(dataset), len(losses), f'{losses[0].recall:.2f} ({losses[0].loss})',
                     f'{losses[-1].recall:.2f} ({losses[-1].loss})',
                     rounded(middle[-1].recall - middle[0].recall),
                     rounded(math.sqrt(sum(one.error ** 2 * one.n for one in losses) / len(losses)), '', 2),
                     f'{sum(abs(mean) > half for mean, half in pairs)} of {len(pairs)}'])
    return markdown(['data set', 'losses', 'lowest R@1', 'highest R@1', 'range of the middle half',
                     'standard deviation over seeds', 'pairs that differ'], rows)


def gain_table(found):
    """Returns the table of the gains by rho-regularisation, a row per loss and a column per data set."""
    cells = {}
    for settings in found.values():
        by_name = {one.name: one for one in settings}
        for one in settings:
            if one.is_regularised:
                mean, half = gap(one, by_name[f'{one.name.replace(REGULARISED, "_")}_Distance'])
                text = f'{rounded(mean, "+", 2)} ± {rounded(half, "", 2)}'
                cells.setdefault(one.loss.removeprefix('ρ '), []).append(f'**{text}**' if abs(mean) > half else text)
    return markdown(['loss', *map(naming.dataset, found)], [[loss, *row] for loss, row in cells.items()])


def correlation_table(found):
    """Returns the table of Pearson's correlations with R@1 over the losses, and over all settings."""
    rows = []
    for dataset, settings in found.items():
        cells = []
        for some in (plain(settings), settings):
            result = stats.pearsonr([one.decay for one in some], [one.recall for one in some])
            low, high = result.confidence_interval()
            cells.append(f'{rounded(result.statistic, "", 2)} ({rounded(low, "", 2)} to {rounded(high, "", 2)})')
        rows.append([naming.dataset(dataset), *cells, rounded(PRINTED[dataset][1], '', 2)])
    return markdown(
        ['data set', 'spectral decay, losses', 'with rho-regularisation', 'ratio of distances, as printed'], rows)


def tables():
    """Returns {name: text} of the tables."""
    found = read()
    return {'published spread': spread_table(found), 'published gain': gain_table(found),
            'published correlations': correlation_table(found)}
