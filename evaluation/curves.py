"""Plots of the metrics over the epochs of a run."""
from pathlib import Path

import numpy as np

from evaluation import titles
from records import columns
from records.columns import Column
from utilities import plotting

COLOURS = dict(zip(('train', 'val', 'test'), plotting.COLOURS, strict=False))


@plotting.styled
def plot(rows, folder):
    """
    Saves <metric>.png in `folder` for the loss and each metric, with a line per split, or per split and argument;
    fractions are in percent. rows: the rows of log.csv, as text.
    """
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    families = {'loss': {columns.LOSS: Column('train', 'loss')}}
    for name in rows[0] if rows else ():
        if (column := columns.parse(name)) and not columns.is_interval(name):
            families.setdefault(column.at_split.partition('@')[0], {})[name] = column
    for family, members in families.items():
        figure = plotting.new_figure()
        axes = figure.add_subplot()
        lines = {}
        for name, column in members.items():
            colour, low_high = COLOURS[column.split], columns.interval(name)
            line = lines.setdefault(column.at_split, plotting.LINES[len(lines) % len(plotting.LINES)])
            axes.plot(*points(rows, name).T, color=colour, linestyle=line, marker='.',
                      label=f'{column.split} {titles.metric(column.on("test").name)}')
            axes.fill_between(*points(rows, *low_high).T, color=colour, alpha=0.15, linewidth=0)
        axes.set_ylabel(titles.shared_axis(members.values()))
        plotting.whole_epochs(axes)
        axes.grid()
        plotting.legend_above(axes)
        plotting.save(figure, folder / f'{family}.png')


def points(rows, *names):
    """[rows, 1 + number of names]: the epoch and the columns `names`, in their units, of the rows that have them."""
    units = [1, *(titles.unit(name.removesuffix('_low').removesuffix('_high')) for name in names)]
    found = [[float(row[name]) for name in ('epoch', *names)] for row in rows if all(row.get(name) for name in names)]
    return np.array(found).reshape(-1, 1 + len(names)) * units
