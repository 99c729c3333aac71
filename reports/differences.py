"""Result_Evaluations.py --baseline: columns with the differences between each group and a baseline."""
import math

from evaluation import titles
from reports import significance, tables
from utilities.errors import UserError


def add(table, groups, scores, names, baseline, digits=1):
    """
    Adds a Cell (data set, titles.DIFFERENCE + name) to each method of a table that tables.summarise describes, except
    to the baseline: the difference between the means, with the interval of significance.difference_interval.

    baseline: the name of a group, or of its method. Returns the columns of the table, each metric before its
    difference. Raises UserError if the baseline has no runs on one of the data sets.
    """
    for dataset in dict.fromkeys(group.data for group in groups if group.runs):
        members = {group.name: group for group in groups if group.data == dataset and group.runs}
        reference = next((group for group in members.values() if baseline in (group.name, group.method)), None)
        if reference is None:
            raise UserError(f'--baseline {baseline}: the table has no runs of this group on {dataset}; choose from '
                            f'{", ".join(members)}')
        for group in members.values():
            for name in names if group is not reference else ():
                one, other = (scores[(scores.dataset == dataset) & (scores.group == member.name)][name].dropna()
                              for member in (group, reference))
                if one.empty or other.empty:
                    continue
                mean, half = significance.difference_interval(one, other)
                table[group.method][dataset, titles.DIFFERENCE + name] = tables.Cell(
                    mean, math.nan, len(one), len(one), difference_text(mean, half, name, digits), interval=half)
    return [column for name in names for column in (name, titles.DIFFERENCE + name)]


def difference_text(mean, half, name, digits):
    return tables.signed(mean, name, digits) + ('' if math.isnan(half) else f' ± {tables.printed(half, name, digits)}')


def explained(baseline):
    """A sentence for the caption."""
    return (f' Δ: difference to {baseline}, ± half of its 95 % interval (Welch; a baseline with a single seed counts '
            'as known).')
