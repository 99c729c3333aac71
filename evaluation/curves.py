"""Plots of the metrics over the epochs of a run."""
from pathlib import Path

import numpy as np

from evaluation import titles
from records import columns
from records.columns import Column
from utilities import plotting

COLOURS = dict(zip(('train', 'val', 'test'), plotting.COLOURS, strict=False))
FILE = 'curves.png'                                # the figure of all metrics
SINGLE = 'metrics'                                 # --pictures metrics: a file for each
WIDEST = 4                                         # columns of the figure
HEIGHT, LEGEND, FOOT, LEFT, RIGHT = 1.15, 0.3, 0.3, 0.45, 0.1               # inches: of a row, and of the margins
ENDS = 4.5                                         # points: font size of labels at the ends of lines, their distance
GAPS = {'wspace': 0.32, 'hspace': 0.45}


@plotting.styled
def plot(rows, folder, single=False):
    """
    Saves curves.png in `folder`: the loss and each metric over the epochs, with a line per split, or per split and
    argument; fractions are in percent. rows: the rows of log.csv, as text. single: also saves <metric>.png of each.
    """
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    families = metric_families(rows)
    n_columns = min(len(families), WIDEST)
    n_rows = -(-len(families) // n_columns)
    width, height = 0.5 * plotting.COLUMN * max(n_columns, 2), HEIGHT * n_rows + LEGEND + FOOT
    figure = plotting.new_figure(width, height)
    figure.set_layout_engine('none')               # a search for the layout would draw all axes several times
    grid = figure.add_gridspec(n_rows, n_columns, left=LEFT / width, right=1 - RIGHT / width, bottom=FOOT / height,
                               top=1 - (LEGEND + 0.15) / height, **GAPS)
    splits = {}
    for index, members in enumerate(families.values()):
        axes, ends = figure.add_subplot(grid[index], sharex=figure.axes[0] if index else None), {}
        for column, line in zip(members.values(), draw(axes, rows, members), strict=True):
            splits.setdefault(column.split, line)
            ends[column.at_split] = line, column
        if len(ends) > 1:
            label_ends(axes, ends.values())
        axes.set_title(titles.shared_axis(members.values()), loc='left', pad=3, y=1)        # without y, it is searched
        axes.tick_params(labelsize=6, length=2, pad=2, labelbottom=index + n_columns >= len(families))
        axes.xaxis.labelpad = 1
        if index + n_columns < len(families):
            axes.set_xlabel('')
    figure.legend(splits.values(), splits.keys(), loc='upper center', ncols=len(splits), borderaxespad=0.3)
    plotting.save(figure, folder / FILE)
    for family, members in families.items() if single else ():
        figure = plotting.new_figure()
        axes = figure.add_subplot(ylabel=titles.shared_axis(members.values()))
        draw(axes, rows, members)
        plotting.legend_above(axes)
        plotting.save(figure, folder / f'{family}.png')


def metric_families(rows):
    """{metric without its argument, or one of the distances: {column: Column}}, the loss first."""
    families = {'loss': {columns.LOSS: Column('train', 'loss')}}
    for name in titles.without_second_names(rows[0]) if rows else ():
        if (column := columns.parse(name)) and not columns.is_beside(name):
            family = column.at_split if 'dists@' in name else column.at_split.partition('@')[0]   # their scales differ
            families.setdefault(family, {})[name] = column
    return families


def draw(axes, rows, members):
    """Draws the columns `members`, {name: Column}, with their intervals; returns their lines."""
    styles = {}
    drawn = []
    for name, column in members.items():
        colour = COLOURS[column.split]
        style = styles.setdefault(column.at_split, plotting.LINES[len(styles) % len(plotting.LINES)])
        drawn += axes.plot(*points(rows, name).T, color=colour, linestyle=style, marker='.',
                           label=f'{column.split} {titles.metric(column.on("test").name)}')
        band = points(rows, *columns.interval(name))
        if len(band):
            axes.fill_between(*band.T, color=colour, alpha=0.15, linewidth=0)
    plotting.whole_epochs(axes)
    axes.grid()
    return drawn


def label_ends(axes, ends):
    """Writes the argument of metrics, such as the 4 of e_recall@4, beside the last finite points of their lines."""
    axes.autoscale_view()                          # before it, places on the page are not final
    placed = []
    for line, column in ends:
        places = line.get_xydata()
        finite = places[np.isfinite(places).all(axis=1)]
        if len(finite):
            height = axes.transData.transform(finite[-1])[1] / axes.figure.dpi * 72
            placed.append((height, column.metric.partition('@')[2], finite[-1], line.get_color()))
    lowest = -np.inf
    for height, text, point, colour in sorted(placed, key=lambda label: label[0]):
        raised = max(height, lowest)
        axes.annotate(text, point, (2, raised - height), textcoords='offset points', fontsize=ENDS, va='center',
                      color=colour, annotation_clip=False)
        lowest = raised + ENDS


def points(rows, *names):
    """[rows, 1 + number of names]: the epoch and the columns `names`, in their units, of the rows that have them."""
    units = [1, *(titles.unit(name.removesuffix('_low').removesuffix('_high')) for name in names)]
    found = [[float(row[name]) for name in ('epoch', *names)] for row in rows if all(row.get(name) for name in names)]
    return np.array(found).reshape(-1, 1 + len(names)) * units
