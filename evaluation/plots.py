"""Figures every run makes: metric curves, and a panel of queries with what they retrieve."""
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps

from evaluation.figures import draw_queries
from utilities.files import atomic

GREEN, RED, BLACK = (44, 160, 44), (214, 39, 40), (60, 60, 60)
COLOURS = {'train': 'tab:blue', 'val': 'tab:orange', 'test': 'tab:green'}


def curves(rows, folder):
    """A PNG per metric family, the splits side by side as lines; rows: those of log.csv, as text."""
    from matplotlib.figure import Figure
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    families = {'loss': ['train_loss']}
    for name in (name for name in (rows[0] if rows else {}) if name.startswith(('train_', 'val_', 'test_'))):
        if name != 'train_loss' and not name.endswith(('_low', '_high')):
            families.setdefault(name.partition('_')[2].partition('@')[0], []).append(name)
    for family, names in families.items():
        figure = Figure(figsize=(6, 4), layout='constrained')
        axes = figure.add_subplot(xlabel='epoch', ylabel=family, title=family)
        styles = {}
        for name in names:
            points = [(int(row['epoch']), float(row[name])) for row in rows if row.get(name)]
            split, _, metric = name.partition('_')
            style = styles.setdefault(metric, ('-', '--', ':', '-.')[len(styles) % 4])
            axes.plot(*np.array(points).reshape(-1, 2).T, color=COLOURS[split], linestyle=style, marker='.',
                      label=f'{split} {metric}')
            band = [[float(row[column]) for column in ('epoch', f'{name}_low', f'{name}_high')]
                    for row in rows if row.get(f'{name}_low')]
            axes.fill_between(*np.array(band).reshape(-1, 3).T, color=COLOURS[split], alpha=0.15, linewidth=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize='small')
        with atomic(folder / f'{family}.png') as temporary:
            figure.savefig(temporary, dpi=120)


def retrieval_panel(embedded, file, seed, n_queries=10, n_neighbours=8, side=96, border=5):
    """
    A PNG: per row a query, framed black, and its nearest images, framed green where they are of its class, else red.

    The queries are drawn with `seed` among those that have something to find, one per class as far as they go.
    """
    images = embedded.images
    queries, neighbours = draw_queries(embedded, seed, n_queries, n_neighbours)
    if not len(queries):
        return
    cell = side + 2 * border + 4
    panel = Image.new('RGB', ((neighbours.shape[1] + 1) * cell + 12, len(queries) * cell), 'white')
    for row, (query, others) in enumerate(zip(queries, neighbours, strict=True)):
        for column, index in enumerate([query, *others]):
            right = images.labels[index] == images.labels[query]
            colour = BLACK if not column else GREEN if right else RED
            picture = ImageOps.expand(thumbnail(images, index, side), border, colour)
            panel.paste(picture, (column * cell + (12 if column else 0), row * cell))
    ImageDraw.Draw(panel).line([(cell + 4, 0), (cell + 4, panel.height)], BLACK, 2)
    with atomic(file) as temporary:
        panel.save(temporary)


def thumbnail(images, index, side):
    """What the network sees of an image, as PIL, side x side."""
    pixels = (images[int(index)][0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)


def projector(embedded, folder, limit=2000):
    """TensorBoard's projector: embeddings with class names and pictures; at most `limit` images, evenly spaced."""
    from torch.utils.tensorboard import SummaryWriter
    images = embedded.images
    chosen = np.unique(np.linspace(0, len(images) - 1, min(limit, len(images))).astype(int))
    side = min(64, 8192 // math.ceil(math.sqrt(len(chosen))))         # the sprite of all pictures may have 8192 pixels
    pictures = np.stack([np.asarray(thumbnail(images, index, side)) for index in chosen])
    names = [images.class_names[label] for label in images.labels[chosen]]
    with SummaryWriter(folder) as writer:
        writer.add_embedding(embedded.embeddings[chosen].cpu(), names,
                             torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255, tag='test')
