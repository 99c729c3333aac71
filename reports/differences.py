"""Result_Evaluations.py --baseline: columns with the differences between each group and a baseline."""
import math

from evaluation import titles
from reports import significance, tables
from utilities.errors import UserError

CORRECTED = ", corrected by Holm's method for the methods of its column"


def add(table, groups, scores, names, baseline, digits=1):
    """
    Adds a Cell (data set, titles.DIFFERENCE + name) to each method of a table that tables.summarise describes, except
    to the baseline and on data sets where it has no runs: the significance.difference of the two over seeds.

    baseline: the name of a group, or of its method. Returns the columns of the table, each metric before its
    difference. Raises UserError if the baseline has no runs.
    """
    groups = [group for group in groups if group.runs]
    references = {group.data: group for group in groups if baseline in (group.name, group.method)}
    if not references:
        raise UserError(f'--baseline {baseline}: the table has no runs of this group; choose from '
                        f'{", ".join(dict.fromkeys(group.name for group in groups))}')
    for dataset, reference in references.items():
        others = [group for group in groups if group.data == dataset and group is not reference]
        for name in names:
            known = values_by_seed(scores, reference, name)
            values = {group.method: values_by_seed(scores, group, name) for group in others}
            found = {method: significance.difference(own, known) for method, own in values.items() if own and known}
            corrected = significance.holm([difference.p for difference in found.values()])
            for (method, difference), p in zip(found.items(), corrected, strict=True):
                n = len(values[method])
                text = difference_text(difference.mean, difference.interval, name, digits)
                facts = {'interval': difference.interval, 'p': difference.p, 'p_holm': p, 'test': difference.test}
                table[method][dataset, titles.DIFFERENCE + name] = tables.Cell(
                    difference.mean, math.nan, n, n, text + test_text(p, difference.test, n, len(known)), facts=facts)
    return [column for name in names for column in (name, titles.DIFFERENCE + name)]


def values_by_seed(scores, group, name):
    """{seed: value} of a column of selection.scores, of the runs of a Group that have one."""
    rows = scores[(scores.dataset == group.data) & (scores.group == group.name)].dropna(subset=name)
    return dict(zip(rows.seed, rows[name], strict=True))


def difference_text(mean, half, name, digits):
    return tables.signed(mean, name, digits) + ('' if math.isnan(half) else f' ± {tables.printed(half, name, digits)}')


def test_text(p, test, n, n_baseline):
    """
    p, the numbers of runs, and the test where it is not the paired t-test, in brackets; empty where there is no test.

    >>> test_text(.0123, significance.PAIRED, 5, 5), test_text(.0001, significance.WELCH, 5, 4)
    (' (p = 0.012, n = 5)', " (p < 0.001, Welch's t-test, n = 5 and 4)")
    """
    if math.isnan(p):
        return ''
    parts = ['p < 0.001' if p < 0.0005 else f'p = {p:.3f}', *([] if test == significance.PAIRED else [test]),
             f'n = {n}' + ('' if n == n_baseline else f' and {n_baseline}')]
    return f' ({", ".join(parts)})'


def explained(baseline, table):
    """Sentences for the caption of a table with the columns of add()."""
    compared = [key for cells in table.values() for key, cell in cells.items() if cell.facts]
    several = len(set(compared)) < len(compared)
    return (f' Δ: difference to {baseline}, ± half of its 95 % interval; p: paired t-test over runs of the same seed, '
            f'unless another test is named{CORRECTED * several}.')
