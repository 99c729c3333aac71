"""Plots of the metrics over the epochs of a run."""
from pathlib import Path

import numpy as np

from evaluation.drawing import write
from utilities import columns
from utilities.columns import Column
from utilities.files import atomic

COLOURS = {'train': 'tab:blue', 'val': 'tab:orange', 'test': 'tab:green'}
STYLES = ('-', '--', ':', '-.')


def plot(rows, folder):
    """Saves <metric>.png in `folder` for the loss and each metric, with a line per split; rows: of log.csv, as text."""
    from matplotlib.figure import Figure
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    families = {'loss': {columns.LOSS: Column('train', 'loss')}}
    for name in rows[0] if rows else ():
        if (column := columns.parse(name)) and not columns.is_interval(name):
            families.setdefault(column.at_split.partition('@')[0], {})[name] = column
    for family, members in families.items():
        figure = Figure(figsize=(6, 4), dpi=120, layout='constrained')
        axes = figure.add_subplot(xlabel='epoch', ylabel=family, title=family)
        styles = {}
        for name, column in members.items():
            colour, low_high = COLOURS[column.split], columns.interval(name)
            style = styles.setdefault(column.at_split, STYLES[len(styles) % len(STYLES)])
            axes.plot(*points(rows, name).T, color=colour, linestyle=style, marker='.',
                      label=f'{column.split} {column.at_split}')
            axes.fill_between(*points(rows, *low_high).T, color=colour, alpha=0.15, linewidth=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize='small')
        with atomic(folder / f'{family}.png') as temporary:
            write(figure, temporary)


def points(rows, *names):
    """[epochs, 1 + number of names]: the epoch and the columns `names`, where a row has them."""
    found = [[float(row[name]) for name in ('epoch', *names)] for row in rows if all(row.get(name) for name in names)]
    return np.array(found).reshape(-1, 1 + len(names))
