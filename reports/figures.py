"""Figures of many runs: correlations between metrics, curves with a band over seeds, means with error bars."""
import math
import textwrap

import numpy as np
import pandas

from evaluation import titles
from reports import naming
from utilities.plotting import COLUMN, GREY, literal, mark, new_figure, save, styled, whole_epochs

WIDEST = 28                                                # letters in a line of a label
LETTER, LINE = 0.055, 0.145                                # inches: the width of a letter, the height of a line


def label_of(method, n=1):
    """The name of a method as lines, with its number of runs if there are several."""
    number = f' (n\u00a0=\u00a0{n})' if n > 1 else ''                                     # spaces that do not break
    return literal(textwrap.fill(naming.method(method) + number, WIDEST))


def height_of(labels):
    """Of the labels of a legend, one below the other, in inches."""
    return LINE * sum(1 + label.count('\n') for label in labels)


def entitled(figure, title):
    """Writes a title above the axes and the legend, and returns the figure."""
    figure.suptitle(literal(textwrap.fill(title, int(figure.get_figwidth() / LETTER))), size='medium')
    return figure


def legend_beside(axes, handles=None):
    axes.legend(handles=handles, loc='upper left', bbox_to_anchor=(1, 1), borderaxespad=0)


def correlation(x, y):
    """Pearson's r, with its number of finite points; nan for fewer than three, or where one does not vary."""
    known = pandas.DataFrame({'x': x, 'y': y}, dtype=float).replace([np.inf, -np.inf], np.nan).dropna()
    return float(known.corr(min_periods=3).loc['x', 'y']), len(known)


@styled
def correlation_matrix(scores, names, file, title):
    """Pearson correlations between metrics over runs, at the selected epochs. scores: on one data set."""
    n = len(names)
    matrix = scores[names].astype(float).replace([np.inf, -np.inf], np.nan).corr(min_periods=3).to_numpy()
    labels = [titles.metric(name) for name in names]
    margin = LETTER * max(map(len, labels))
    figure = new_figure(0.9 + margin + 0.32 * n, 0.5 + margin + 0.3 * n)
    axes = figure.add_subplot()
    picture = axes.imshow(matrix, vmin=-1, vmax=1, cmap='RdBu_r')
    axes.set_xticks(range(n), labels, rotation=60, ha='right', rotation_mode='anchor')
    axes.set_yticks(range(n), labels)
    for i, j in np.ndindex(n, n):
        value = matrix[i, j]
        axes.text(j, i, '–' if math.isnan(value) else f'{value:.2f}', ha='center', va='center', fontsize=5.5,
                  color='white' if abs(value) > 0.6 else 'black')
    figure.colorbar(picture, shrink=0.8, label="Pearson's r")
    return save(entitled(figure, f'{title}: correlation over up to {len(scores)} runs'), file)


@styled
def scatter(scores, x, y, file, title):
    """A point per run, marked by method, with the regression line and the correlation over the runs."""
    in_units = scores.assign(**{name: titles.unit(name) * scores[name].astype(float) for name in {x, y}})
    by_method = [(label_of(method), rows) for method, rows in in_units.groupby('method', sort=False)]
    figure = new_figure(1.5 * COLUMN, max(0.7 * COLUMN, 0.4 + height_of(label for label, _ in by_method)))
    axes = figure.add_subplot(xlabel=titles.axis(x), ylabel=titles.axis(y))
    for index, (label, rows) in enumerate(by_method):
        colour, marker, _ = mark(index)
        axes.scatter(rows[x], rows[y], color=colour, marker=marker, label=label, s=12, linewidths=0, zorder=3)
    r, n = correlation(scores[x], scores[y])
    words = f'r = {r:.2f} over {n} runs' if not math.isnan(r) else f'no correlation from {n} runs'
    if not math.isnan(r):
        known = in_units[np.isfinite(in_units[x]) & np.isfinite(in_units[y])]
        slope, offset = np.polyfit(known[x], known[y], 1)
        ends = np.array([known[x].min(), known[x].max()])
        axes.plot(ends, slope * ends + offset, color=GREY)
    axes.grid()
    legend_beside(axes)
    return save(entitled(figure, f'{title}: {words}'), file)


@styled
def curves(groups, name, file, title):
    """
    A metric over epochs: the mean of each group's runs and a band of one standard deviation over seeds. The legend
    is in the order of the last values, and the two highest lines are thick.
    """
    labels = [label_of(group.method, len(group.runs)) for group in groups]
    figure = new_figure(1.5 * COLUMN, max(0.7 * COLUMN, 0.4 + height_of(labels)))
    axes = figure.add_subplot(ylabel=titles.axis(name))
    lines = []
    for index, group in enumerate(groups):
        runs = [pandas.Series({row['epoch']: row.get(name, math.nan) for row in run.rows}, dtype=float)
                for run in group.runs if any(name in row for row in run.rows)]
        if not runs:
            continue
        values = titles.unit(name) * pandas.concat(runs, axis=1, join='inner').sort_index()      # epochs of all seeds
        if values.empty:                                      # no epoch that all seeds have
            continue
        mean = values.mean(axis=1, skipna=False)
        std = values.std(axis=1, skipna=False) if len(runs) > 1 else 0
        colour, marker, line = mark(index)
        lines += axes.plot(values.index, mean, color=colour, linestyle=line, marker=marker,
                           label=label_of(group.method, len(runs)))
        axes.fill_between(values.index, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
    lines.sort(key=lambda line: -np.nan_to_num(line.get_ydata()[-1], nan=-np.inf))
    for line in lines[:2]:
        line.set(linewidth=1.8, markersize=4.5, zorder=4)
    whole_epochs(axes)
    axes.grid()
    legend_beside(axes, lines)
    return save(entitled(figure, title), file)


@styled
def bars(scores, name, file, title):
    """The methods' means, sorted, as dots with error bars: one standard deviation over seeds."""
    table = scores.groupby('method', sort=False)[name].agg(['mean', 'std', 'count']).sort_values('mean')
    table = table[table['count'] > 0]
    labels = [label_of(method, count) for method, count in table['count'].items()]
    figure = new_figure(COLUMN, 0.8 + len(labels) * max(height_of([label]) for label in labels))
    axes = figure.add_subplot(xlabel=titles.axis(name))
    mean, half = titles.unit(name) * table['mean'], titles.unit(name) * table['std'].fillna(0)
    axes.errorbar(mean, range(len(table)), xerr=half, fmt='o', color='black', capsize=2)
    axes.set_yticks(range(len(table)), labels)
    axes.margins(y=0.6 / len(table))
    axes.grid()
    return save(entitled(figure, title), file)
