"""The style of all figures: as wide as a paper's column, readable in grey, in colours for colour-blind readers too."""
import functools
from pathlib import Path

import numpy as np
from PIL import Image

from utilities.files import atomic

# the palette of Okabe and Ito, Color Universal Design, https://jfly.uni-koeln.de/color/, without its yellow, which is
# hard to see on white
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
RIGHT, WRONG, GREY = '#009E73', '#D55E00', '0.45'
MARKERS, LINES = 'os^DvPX*', ('-', '--', '-.', ':')
COLUMN = 3.4                 # width of a paper's column, in inches
STYLE = {'font.size': 7, 'axes.prop_cycle': f'cycler(color={list(COLOURS)})',
         'axes.spines.top': False, 'axes.spines.right': False, 'axes.linewidth': 0.6,
         'axes.axisbelow': True, 'axes.titlesize': 'medium', 'grid.alpha': 0.3, 'grid.linewidth': 0.5,
         'lines.linewidth': 0.9, 'lines.markersize': 3, 'figure.constrained_layout.use': True, 'figure.dpi': 300,
         'savefig.dpi': 300, 'legend.frameon': False, 'pdf.fonttype': 42,
         'svg.hashsalt': 'evaluation'}                     # the same picture is the same file


def styled(draw):
    """A decorator: `draw` makes its figure, and writes it, in this style."""
    @functools.wraps(draw)
    def in_style(*args, **kwargs):
        import matplotlib
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)
    return in_style


def new_figure(width=COLUMN, height=0.7 * COLUMN):
    """width, height: in inches."""
    from matplotlib.figure import Figure
    return Figure(figsize=(width, height))


def mark(index):
    """Colour, marker and line of the method with this index; neighbours differ in all three, no two of 56 are alike."""
    return COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], LINES[index % len(LINES)]


def whole_epochs(axes):
    """Labels the x axis with whole numbers."""
    from matplotlib.ticker import MaxNLocator
    axes.set_xlabel('epoch')
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def save(figure, file):
    """Writes a figure atomically, and returns its file."""
    with atomic(Path(file)) as temporary:
        write(figure, temporary)
    return file


def write(figure, file):
    """Writes a figure as PNG without transparency, or as PDF or SVG, by the suffix of `file`."""
    if file.suffix != '.png':
        figure.savefig(file, metadata={'Date': None} if file.suffix == '.svg' else {'CreationDate': None})
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    canvas = FigureCanvasAgg(figure)
    canvas.draw()                                          # once; savefig draws twice where it has a layout to find
    Image.fromarray(np.asarray(canvas.buffer_rgba())[:, :, :3]).save(file, dpi=(figure.dpi, figure.dpi))
