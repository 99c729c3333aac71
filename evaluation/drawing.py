"""What the pictures of this package share: their style, their files, and panels of images."""
import numpy as np
from PIL import Image

COLUMN = 3.4                 # width of a paper's column, in inches
STYLE = {'font.size': 7, 'axes.spines.top': False, 'axes.spines.right': False, 'axes.linewidth': 0.6,
         'figure.constrained_layout.use': True, 'figure.dpi': 300, 'legend.frameon': False,
         'svg.hashsalt': 'evaluation'}                     # the same picture is the same file


def write(figure, file):
    """Writes a figure as SVG, or as PNG without transparency, by the suffix of `file`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    if file.suffix == '.svg':
        figure.savefig(file, metadata={'Date': None})
        return
    canvas = FigureCanvasAgg(figure)
    canvas.draw()                                          # once; savefig draws twice where it has a layout to find
    Image.fromarray(np.asarray(canvas.buffer_rgba())[:, :, :3]).save(file, dpi=(figure.dpi, figure.dpi))


def new_figure(width, height):
    """width, height: in inches."""
    from matplotlib.figure import Figure
    return Figure(figsize=(width, height))


def panel(rows, frame=0.035, gap=0.1):
    """
    A figure of rows of framed square images, the first of each row set apart.

    rows: [(title, [(pixels [H, W, 3] uint8, colour of the frame, text below the image or None), ...]), ...].
    frame, gap: widths, in images' sides.
    """
    from matplotlib.patches import Rectangle
    n_columns, has_texts = max(len(tiles) for _, tiles in rows), any(tile[2] for _, tiles in rows for tile in tiles)
    width, height = (n_columns - 1) * (1 + gap) + 1 + 3 * gap, 1 + (3.4 if has_texts else 2.2) * gap
    scale = 2 * COLUMN / width
    figure = new_figure(2 * COLUMN, scale * (len(rows) * height + gap / 2))
    figure.set_layout_engine('none')
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-gap, width - gap), ylim=(len(rows) * height, -gap / 2))
    axes.set_axis_off()
    for row, (title, tiles) in enumerate(rows):
        top = row * height + 1.6 * gap
        axes.text(-frame, top - 2 * frame, title, fontsize=5.5)
        for column, (image, colour, text) in enumerate(tiles):
            left = column * (1 + gap) + (gap if column else 0)
            framed = (left - frame, top - frame), 1 + 2 * frame, 1 + 2 * frame
            axes.add_patch(Rectangle(*framed, facecolor=colour))
            axes.imshow(image, extent=(left, left + 1, top + 1, top), aspect='auto', zorder=2)
            if text:
                axes.text(left + 0.5, top + 1 + 1.2 * gap, text, fontsize=4.5, ha='center')
    return figure
