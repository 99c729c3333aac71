"""Result_Evaluations.py --baseline: columns with the differences between each group and a baseline."""
import math

from evaluation import titles
from reports import naming, significance, tables
from utilities.errors import UserError


def add(table, groups, scores, names, baseline, digits=1):
    """
    Adds a Cell (data set, titles.DIFFERENCE + name) to each method of a table that tables.summarise describes, except
    to the baseline and on data sets where it has no runs: the significance.difference of the two over seeds. A baseline
    with a single run, such as a frozen backbone, counts as known.

    baseline: the name of a group, or of its method. Returns the columns of the table, each metric before its
    difference, and the baseline's name in the table. Raises UserError if the baseline has no runs.
    """
    groups = [group for group in groups if group.runs]
    references = {group.test_set: group for group in groups if baseline in (group.name, group.method)}
    if not references:
        raise UserError(f'--baseline {baseline}: the table has no runs of this group; choose from '
                        f'{", ".join(dict.fromkeys(group.name for group in groups))}')
    for dataset, reference in references.items():
        others = [group for group in groups if group.test_set == dataset and group is not reference]
        for name in names:
            known = values_by_seed(scores, reference, name)
            values = {group.method: values_by_seed(scores, group, name) for group in others}
            found = {method: compared(own, known) for method, own in values.items() if own and known}
            corrected = significance.holm([difference.p for difference in found.values()])
            for method, p in zip(found, corrected, strict=True):
                table[method][dataset, titles.DIFFERENCE + name] = cell_of(found[method], p, name, digits)
    return [column for name in names for column in (name, titles.DIFFERENCE + name)], naming.method(reference.method)


def values_by_seed(scores, group, name):
    """{seed: value} of a column of selection.scores, of the runs of a Group that have one."""
    rows = scores[(scores.dataset == group.test_set) & (scores.group == group.name)].dropna(subset=name)
    return dict(zip(rows.seed, rows[name], strict=True))


def compared(own, known):
    """The significance.Difference of a method and the baseline, {seed: value} each."""
    if len(known) == 1:
        return significance.difference_from_constant([*own.values()], *known.values())
    return significance.difference(own, known)


def cell_of(difference, p_holm, name, digits):
    """The Cell of a significance.Difference, whose p is p_holm after correction."""
    text = difference_text(difference.mean, difference.interval, name, digits)
    n = difference.n[0]
    if not math.isnan(p_holm):
        text += f' (p {significance.p_text(p_holm)}, {runs_text(difference.test, *difference.n)})'
    facts = {'interval': difference.interval, 'p': difference.p, 'p_holm': p_holm, 'test': difference.test}
    return tables.Cell(difference.mean, math.nan, n, n, text, facts=facts)


def difference_text(mean, half, name, digits):
    text = tables.printed(mean, name, digits)
    text = text if text.startswith('-') else f'+{text}'
    return text if math.isnan(half) else f'{text} ± {tables.printed(half, name, digits)}'


def runs_text(test, n, n_baseline):
    """
    The numbers of runs, and the test where it is not the paired t-test.

    >>> runs_text(significance.PAIRED, 5, 5), runs_text(significance.WELCH, 5, 4)
    ('n = 5', "Welch's t-test, n = 5 and 4")
    """
    if test == significance.PAIRED:
        return f'n = {n}'
    return f'{test}, n = {n}' + (f' and {n_baseline}' if n != n_baseline else '')


def explained(baseline, table):
    """Sentences for the caption of a table with the columns of add()."""
    compared = [(key, cell.facts['test']) for cells in table.values() for key, cell in cells.items() if cell.facts]
    columns = [key for key, _ in compared]
    tests = [test for _, test in compared]
    corrected = ", corrected by Holm's method for the methods of its data set and column"
    several = len(set(columns)) < len(columns)
    known = f' A single run of {baseline} counts as known: its variation over seeds is in no interval and no p.'
    return (f' Δ: difference to {baseline}, ± half of its 95 % interval; p: paired t-test over runs of the same seed, '
            f'unless another test is named{corrected * several}.{known * (significance.ONE_SAMPLE in tests)}')
