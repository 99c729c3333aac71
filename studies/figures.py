"""The figures of docs/results.md: means with intervals, curves of each method, R@1 against other metrics."""
from pathlib import Path

import numpy as np
import pandas
from matplotlib.ticker import MaxNLocator

from evaluation import titles
from records.columns import Column
from reports import figures, naming, significance
from studies.study import CORRELATES, RECALL, named
from utilities.plotting import COLOURS, COLUMN, mark, new_figure, reduce, save, styled

NAME = Column('test', RECALL).name


def draw(study, folder):
    """Draws all figures of a Study into a folder; the page names them by `of`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for section, data, methods in study.parts():
        scores = pandas.DataFrame([{'method': method.name, NAME: value} for method in methods
                                   for value in method.values().values()])
        files += [figures.bars(scores, NAME, folder / of(section, data, 'means'), named(data), half_width),
                  curves(methods, folder / of(section, data, 'curves'))]
    files += [scatters(methods, folder / of(section, data, 'correlations'))
              for section, data, methods in study.correlated()]
    for file in files:
        reduce(file)
    return files


def of(section, data, what):
    """The name of a figure's file."""
    return f'{section}_{data.casefold()}_{what}.png'


def half_width(values):
    return significance.t_interval(values)[1]


@styled
def curves(methods, file):
    """A panel for each method: R@1 over epochs, the mean and a band of one standard deviation over seeds."""
    n_columns = min(len(methods), 7)
    n_rows = -(-len(methods) // n_columns)
    figure = new_figure(0.4 + 0.91 * n_columns, 0.25 + 0.85 * n_rows)
    panels = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    for panel in panels.flat[len(methods):]:
        panel.set_axis_off()
    for panel, method in zip(panels.flat, methods, strict=False):
        epochs, values = method.curve()
        values = titles.unit(NAME) * values
        mean, std = values.mean(axis=1), values.std(axis=1, ddof=1) if values.shape[1] > 1 else 0
        panel.fill_between(epochs, mean - std, mean + std, color=COLOURS[0], alpha=0.3, linewidth=0)
        panel.plot(epochs, mean, color=COLOURS[0], marker='o' if len(epochs) == 1 else '')
        panel.set_title(naming.method(method.name), fontsize=5.5, pad=2)
        panel.grid()
    panels[0, 0].xaxis.set_major_locator(MaxNLocator(3, integer=True))                 # all panels share it
    figure.supxlabel('epoch', fontsize=7)
    figure.supylabel(titles.axis(NAME), fontsize=7)
    return save(figure, file)


@styled
def scatters(methods, file):
    """R@1 against each of CORRELATES: a point for each method, the mean over seeds."""
    figure = new_figure(2 * COLUMN, 2.2 + 0.13 * -(-len(methods) // 6))
    panels = figure.subplots(1, len(CORRELATES), sharey=True)
    for panel, metric in zip(panels, CORRELATES, strict=True):
        name = Column('test', metric).name
        for index, method in enumerate(methods):
            colour, marker, _ = mark(index)
            panel.scatter(titles.unit(name) * method.mean(metric), titles.unit(NAME) * method.mean(), color=colour,
                          marker=marker, s=12, linewidths=0, zorder=3, label=naming.method(method.name))
        r, _ = figures.correlation(*np.transpose([(method.mean(metric), method.mean()) for method in methods]))
        panel.set(xlabel=titles.axis(name), title=f'r = {r:.2f}')
        panel.grid()
    panels[0].set_ylabel(titles.axis(NAME))
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside lower center', ncols=6, fontsize=5.5)
    return save(figure, file)
