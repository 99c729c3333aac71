"""Figures of many runs: correlations between metrics, curves with a band over seeds, means with error bars."""
import math

import numpy as np
import pandas

from evaluation import titles
from reports import naming
from utilities.plotting import COLUMN, GREY, mark, new_figure, plain, save, styled, whole_epochs


def correlation(x, y):
    """Pearson's r, with its number of points; nan where one of them does not vary."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < 3 or not np.ptp(x[known]) or not np.ptp(y[known]):
        return math.nan, int(known.sum())
    return float(np.corrcoef(x[known], y[known])[0, 1]), int(known.sum())


@styled
def correlation_matrix(scores, names, file, title):
    """Pearson correlations between metrics over runs, at the selected epochs. scores: on one data set."""
    n = len(names)
    matrix = np.array([[correlation(scores[one], scores[other])[0] for other in names] for one in names])
    figure = new_figure(1.2 + 0.32 * n, 0.9 + 0.3 * n)
    axes = figure.add_subplot(title=f'{title}: correlation over {len(scores)} runs')
    picture = axes.imshow(matrix, vmin=-1, vmax=1, cmap='RdBu_r')
    labels = [titles.metric(name) for name in names]
    axes.set_xticks(range(n), labels, rotation=60, ha='right', rotation_mode='anchor')
    axes.set_yticks(range(n), labels)
    for i, j in np.ndindex(n, n):
        value = matrix[i, j]
        axes.text(j, i, '–' if math.isnan(value) else f'{value:.2f}', ha='center', va='center', fontsize=5.5,
                  color='white' if abs(value) > 0.6 else 'black')
    figure.colorbar(picture, shrink=0.8, label="Pearson's r")
    return save(figure, file)


@styled
def scatter(scores, x, y, file, title):
    """A point per run, marked by method, with the regression line and the correlation over the runs."""
    figure = new_figure(1.5 * COLUMN)
    axes = figure.add_subplot(xlabel=titles.axis(x), ylabel=titles.axis(y))
    in_units = scores.assign(**{name: titles.unit(name) * scores[name].astype(float) for name in {x, y}})
    for index, (method, rows) in enumerate(in_units.groupby('method', sort=False)):
        colour, marker, _ = mark(index)
        axes.scatter(rows[x], rows[y], color=colour, marker=marker, label=plain(naming.method(method)), s=12,
                     linewidths=0, zorder=3)
    r, n = correlation(scores[x], scores[y])
    words = f'r = {r:.2f} over {n} runs' if not math.isnan(r) else f'no correlation from {n} runs'
    if not math.isnan(r):
        known = in_units[np.isfinite(in_units[x]) & np.isfinite(in_units[y])]
        slope, offset = np.polyfit(known[x], known[y], 1)
        ends = np.array([known[x].min(), known[x].max()])
        axes.plot(ends, slope * ends + offset, color=GREY)
    axes.set_title(f'{title}: {words}')
    axes.grid()
    figure.legend(loc='outside right upper')
    return save(figure, file)


@styled
def curves(groups, name, file, title):
    """
    A metric over epochs: the mean of each group's runs and a band of one standard deviation over seeds. The legend
    is in the order of the last values, and the two highest lines are thick.
    """
    figure = new_figure(1.5 * COLUMN)
    axes = figure.add_subplot(ylabel=titles.axis(name), title=title)
    lines = []
    for index, group in enumerate(groups):
        runs = [pandas.Series({row['epoch']: row.get(name, math.nan) for row in run.rows}, dtype=float)
                for run in group.runs if any(name in row for row in run.rows)]
        if not runs:
            continue
        values = titles.unit(name) * pandas.concat(runs, axis=1, join='inner').sort_index()      # epochs of all seeds
        mean = values.mean(axis=1, skipna=False)
        std = values.std(axis=1, skipna=False) if len(runs) > 1 else 0
        colour, marker, line = mark(index)
        label = plain(naming.method(group.method)) + (f' (n = {len(runs)})' if len(runs) > 1 else '')
        lines += axes.plot(values.index, mean, color=colour, linestyle=line, marker=marker, label=label)
        axes.fill_between(values.index, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
    lines.sort(key=lambda line: -np.nan_to_num(line.get_ydata()[-1], nan=-np.inf))
    for line in lines[:2]:
        line.set(linewidth=1.8, markersize=4.5, zorder=4)
    whole_epochs(axes)
    axes.grid()
    figure.legend(handles=lines, loc='outside right upper')
    return save(figure, file)


@styled
def bars(scores, name, file, title):
    """The methods' means, sorted, as dots with error bars: one standard deviation over seeds."""
    table = scores.groupby('method', sort=False)[name].agg(['mean', 'std', 'count']).sort_values('mean')
    table = table[table['count'] > 0]
    figure = new_figure(COLUMN, 0.7 + 0.14 * len(table))
    axes = figure.add_subplot(xlabel=titles.axis(name), title=title)
    labels = [plain(naming.method(method)) + (f' (n = {count})' if count > 1 else '')
              for method, count in table['count'].items()]
    mean, half = titles.unit(name) * table['mean'], titles.unit(name) * table['std'].fillna(0)
    axes.errorbar(mean, range(len(table)), xerr=half, fmt='o', color='black', capsize=2)
    axes.set_yticks(range(len(table)), labels)
    axes.margins(y=0.6 / len(table))
    axes.grid()
    return save(figure, file)


@styled
def beside_published(rows, name, file, title):
    """
    Published means and ours, a line per method, the highest published one on top, each with the 95 % interval of its
    mean where it has one. rows: of published.compare, all of the column `name`.
    """
    rows = rows.sort_values('published')
    figure = new_figure(1.5 * COLUMN, 0.9 + 0.2 * len(rows))
    axes = figure.add_subplot(xlabel=f'{titles.axis(name)}: mean and its 95 % interval', title=title)
    places = np.arange(len(rows))

    def add(mean, half, at, index, label):
        colour, marker, _ = mark(index)
        axes.errorbar(titles.unit(name) * mean, at, xerr=titles.unit(name) * half.fillna(0), linestyle='',
                      marker=marker, color=colour, capsize=1.5, label=label)

    add(rows.published, rows.published_half, places + 0.15, 0, 'published')
    add(rows.ours, rows.half, places - 0.15, 1, 'ours')
    axes.set_yticks(places, [f'{plain(naming.method(row.method))} (n = {row.n}){" ≠" * bool(row.differs)}'
                             for row in rows.itertuples()])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid()
    figure.legend(loc='outside right upper')
    return save(figure, file)
