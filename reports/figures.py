"""Figures of many runs: correlations between metrics, curves with a band over seeds, bars with error bars."""
import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from reports import titles
from utilities.files import atomic

COLOURS = [f'C{i}' for i in range(10)]
MARKERS, LINES = 'os^Dv*P', ('-', '--', ':', '-.')


def style(index):
    """Colour, marker and line of the method with this index; no two of 40 are alike."""
    return COLOURS[index % 10], MARKERS[index // 10 % len(MARKERS)], LINES[index // 10 % len(LINES)]


def save(figure, file):
    """Writes the figure, and returns its file."""
    with atomic(Path(file)) as temporary:
        figure.savefig(temporary, dpi=120)
    return file


def correlation(x, y):
    """Pearson's r, with its number of points; nan where one of them does not vary."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < 3 or not np.ptp(x[known]) or not np.ptp(y[known]):
        return math.nan, int(known.sum())
    return float(np.corrcoef(x[known], y[known])[0, 1]), int(known.sum())


def correlation_matrix(scores, names, file, title):
    """Pearson correlations between metrics over runs, at the selected epochs. scores: of one data set."""
    n = len(names)
    matrix = np.array([[correlation(scores[one], scores[other])[0] for other in names] for one in names])
    figure = Figure(figsize=(2.5 + 0.55 * n, 2 + 0.5 * n), layout='constrained')
    axes = figure.add_subplot(title=f'{title}: correlation over {len(scores)} runs')
    picture = axes.imshow(matrix, vmin=-1, vmax=1, cmap='RdBu_r')
    labels = [titles.metric(name) for name in names]
    axes.set_xticks(range(n), labels, rotation=60, ha='right', rotation_mode='anchor')
    axes.set_yticks(range(n), labels)
    for i, j in np.ndindex(n, n):
        value = matrix[i, j]
        axes.text(j, i, '–' if math.isnan(value) else f'{value:.2f}', ha='center', va='center', fontsize=8,
                  color='white' if abs(value) > 0.6 else 'black')
    figure.colorbar(picture, shrink=0.8, label="Pearson's r")
    return save(figure, file)


def scatter(scores, x, y, file, title, regression=True):
    """A point per run, coloured by method, with the regression line and the correlation over the runs."""
    figure = Figure(figsize=(7.5, 4.5), layout='constrained')
    axes = figure.add_subplot(xlabel=titles.metric(x), ylabel=titles.metric(y))
    for index, (method, rows) in enumerate(scores.groupby('method', sort=False)):
        colour, marker, _ = style(index)
        axes.scatter(rows[x], rows[y], color=colour, marker=marker, label=method, s=30, zorder=3)
    r, n = correlation(scores[x], scores[y])
    words = f'r = {r:.2f} over {n} runs' if not math.isnan(r) else f'no correlation from {n} runs'
    if regression and not math.isnan(r):
        known = scores[np.isfinite(scores[x]) & np.isfinite(scores[y])]
        slope, offset = np.polyfit(known[x].astype(float), known[y].astype(float), 1)
        ends = np.array([known[x].min(), known[x].max()], float)
        axes.plot(ends, slope * ends + offset, color='0.4', linewidth=1)
    axes.set_title(f'{title}: {words}')
    axes.grid(alpha=0.3)
    figure.legend(loc='outside right upper', fontsize='small')
    return save(figure, file)


def curves(groups, name, file, title):
    """A metric over epochs: the mean of each group's runs and a band of one standard deviation over seeds."""
    figure = Figure(figsize=(8, 4.5), layout='constrained')
    axes = figure.add_subplot(xlabel='epoch', ylabel=titles.metric(name), title=title)
    for index, group in enumerate(groups):
        by_epoch = {}
        for run in group.runs:
            for row in run.rows:
                by_epoch.setdefault(row['epoch'], []).append(row.get(name, math.nan))
        epochs = [epoch for epoch in sorted(by_epoch) if len(by_epoch[epoch]) == len(group.runs)]   # of all seeds
        if not epochs:
            continue
        values = np.array([by_epoch[epoch] for epoch in epochs])
        mean, std = values.mean(axis=1), values.std(axis=1, ddof=1) if len(group.runs) > 1 else 0
        colour, _, line = style(index)
        axes.plot(epochs, mean, color=colour, linestyle=line, label=f'{group.method} (n = {len(group.runs)})')
        axes.fill_between(epochs, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
    axes.grid(alpha=0.3)
    figure.legend(loc='outside right upper', fontsize='small')
    return save(figure, file)


def bars(scores, name, file, title):
    """The methods' means with error bars of one standard deviation over seeds, sorted; the axis need not start at 0."""
    table = scores.groupby('method', sort=False)[name].agg(['mean', 'std', 'count']).sort_values('mean')
    figure = Figure(figsize=(7, 1.5 + 0.32 * len(table)), layout='constrained')
    axes = figure.add_subplot(xlabel=titles.metric(name), title=title)
    labels = [f'{method} (n = {count})' for method, count in table['count'].items()]
    axes.barh(labels, table['mean'], xerr=table['std'], color='C0', alpha=0.8, capsize=3)
    low, high = (table['mean'] - table['std'].fillna(0)).min(), (table['mean'] + table['std'].fillna(0)).max()
    if np.isfinite([low, high]).all() and low > 0 and high - low < low:
        axes.set_xlim(low - 0.5 * (high - low or low), high + 0.1 * (high - low or low))
        axes.set_xlabel(f'{titles.metric(name)} (the axis does not start at 0)')
    axes.grid(axis='x', alpha=0.3)
    return save(figure, file)
