"""The style of all figures: a paper's column wide, readable in greyscale and by colour-blind readers."""
import functools
import importlib.util
from pathlib import Path

from utilities.errors import UserError
from utilities.files import atomic

# the palette of Okabe and Ito, Color Universal Design, https://jfly.uni-koeln.de/color/, without its yellow, which is
# hard to see on white
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
RIGHT = '#009E73'            # colours of frames
WRONG = '#D55E00'
GREY = '0.45'
MARKERS = 'os^DvPX*'
LINES = ('-', '--', '-.', ':')
COLUMN = 3.4                 # width of a paper's column, in inches
STYLE = {'font.size': 7, 'axes.prop_cycle': f'cycler(color={list(COLOURS)})',
         'axes.spines.top': False, 'axes.spines.right': False, 'axes.linewidth': 0.6,
         'axes.axisbelow': True, 'axes.titlesize': 'medium', 'grid.alpha': 0.3, 'grid.linewidth': 0.5,
         'lines.linewidth': 0.9, 'lines.markersize': 3, 'figure.constrained_layout.use': True, 'figure.dpi': 300,
         'savefig.dpi': 300, 'legend.frameon': False, 'pdf.fonttype': 42,
         'svg.hashsalt': 'evaluation'}                     # equal pictures are equal files


def styled(draw):
    """A decorator: `draw` makes and writes its figures in this style, whatever the user's matplotlibrc has."""
    @functools.wraps(draw)
    def in_style(*args, **kwargs):
        try:
            import matplotlib.style
        except ImportError:
            raise UserError('figures need matplotlib: pip install matplotlib') from None
        with matplotlib.style.context(['default', STYLE]):
            return draw(*args, **kwargs)
    return in_style


def is_possible():
    """Whether figures can be drawn; else prints a note."""
    if importlib.util.find_spec('matplotlib'):
        return True
    print('Note: matplotlib is not installed: no plots (pip install matplotlib).')
    return False


def new_figure(width=COLUMN, height=0.7 * COLUMN):
    """width, height: in inches."""
    from matplotlib.figure import Figure
    return Figure(figsize=(width, height))


def panel(rows, frame=0.035, gap=0.1, breaks=(1,)):
    """
    A figure of rows of framed images, whose longer sides are equal.

    rows: [(title, [(pixels [H, W, 3] uint8, colour of the frame, lines of text below the image or None), ...]), ...].
    breaks: the columns before which the gap is twice as wide; by default after the first image.
    frame, gap: widths, in units of an image's side. A frame of the colour WRONG also has a cross, for readers who do
    not see the colours.
    """
    from matplotlib.patches import Rectangle
    n_columns = max(len(tiles) for _, tiles in rows)
    n_lines = max(len((text or '').splitlines()) for _, tiles in rows for _, _, text in tiles)
    width = (n_columns - 1) * (1 + gap) + 1 + (2 + len(breaks)) * gap
    height = 1 + (2.2 + 1.2 * n_lines) * gap                 # height of a row
    scale = 2 * COLUMN / width
    figure = new_figure(2 * COLUMN, scale * (len(rows) * height + gap / 2))
    figure.set_layout_engine('none')
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-gap, width - gap), ylim=(len(rows) * height, -gap / 2))
    axes.set_axis_off()
    for row, (title, tiles) in enumerate(rows):
        top = row * height + 1.6 * gap
        fit(axes.text(-frame, top - 2 * frame, title, fontsize=5.5), scale * (width - 2 * gap))
        for column, (image, colour, text) in enumerate(tiles):
            left = column * (1 + gap) + gap * sum(column >= place for place in breaks)
            tall, wide = (side / max(image.shape[:2]) for side in image.shape[:2])
            x = left + (1 - wide) / 2
            y = top + (1 - tall) / 2
            axes.add_patch(Rectangle((x - frame, y - frame), wide + 2 * frame, tall + 2 * frame, facecolor=colour))
            axes.imshow(image, extent=(x, x + wide, y + tall, y), aspect='auto', zorder=2)
            if colour == WRONG:
                axes.text(x + wide - 0.02, y + 0.02, '×', color='white', fontsize=7, ha='right', va='top', zorder=3,
                          bbox={'facecolor': WRONG, 'linewidth': 0, 'pad': 0.5})
            if text:
                below = axes.text(left + 0.5, top + 1 + 0.6 * gap, text, fontsize=4.5, ha='center', va='top')
                fit(below, scale * (1 + gap / 2))
    return figure


def fit(text, width):
    """Makes the font of a text of matplotlib smaller where it is wider than `width`, in inches."""
    given = text.get_window_extent().width / text.figure.dpi
    if given > width:
        text.set_fontsize(text.get_fontsize() * width / given)


def legend_above(axes):
    """A legend above the axes, where it covers no curve, in two columns, or in one if two are wider than the axes."""
    for n_columns in (2, 1):
        legend = axes.legend(loc='lower left', bbox_to_anchor=(0, 1), borderaxespad=0.2, borderpad=0, columnspacing=1,
                             ncols=n_columns)
        if legend.get_window_extent().width <= axes.get_window_extent().width:
            return


def literal(text, length=None):
    """Text that a figure shows as it is, cut after `length` characters; two dollar signs would enclose a formula."""
    if length and len(text) > length:
        text = text[:length - 1] + '…'
    return text.replace('$', r'\$')


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
    """Writes a figure as PNG, PDF or SVG, by the suffix of `file`, without the date: equal figures are equal files."""
    dates = {'.svg': {'Date': None}, '.pdf': {'CreationDate': None}}
    figure.savefig(file, metadata=dates.get(file.suffix))
