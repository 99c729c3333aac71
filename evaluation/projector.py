"""The files of TensorBoard's projector, in which embeddings can be looked at."""
import math

import numpy as np
import torch
from PIL import Image

from evaluation.pictures import pixels


def write(embedded, folder, limit=2000):
    """Writes the embeddings, class names and thumbnails of at most `limit` images, evenly spaced, into `folder`."""
    from torch.utils.tensorboard import SummaryWriter
    images = embedded.images
    chosen = np.unique(np.linspace(0, len(images) - 1, min(limit, len(images))).astype(int))
    side = min(64, 8192 // math.ceil(math.sqrt(len(chosen))))  # all thumbnails together may have 8192 pixels per side
    thumbnails = np.stack([thumbnail(images, index, side) for index in chosen])
    names = [images.class_names[label] for label in images.labels[chosen]]
    with SummaryWriter(folder) as writer:
        writer.add_embedding(embedded.embeddings[chosen].cpu(), names,
                             torch.from_numpy(thumbnails).permute(0, 3, 1, 2) / 255, tag='test')


def thumbnail(images, index, side):
    return np.asarray(Image.fromarray(pixels(images, index)).resize((side, side), Image.Resampling.BICUBIC))
