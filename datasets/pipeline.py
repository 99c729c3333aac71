"""From a photo to the pixels of a batch: applies torchvision's transforms to only those pixels that they need."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision.transforms import v2


@dataclass
class Pipeline:
    """
    A decoding.Photo, or a PIL image in RGB -> float32 RGB tensor [3, H, W] in [0, 1].

    transforms: those of torchvision. If the first one is a crop or a resizing, only the pixels that it needs are
                copied. Grey images have one channel until the end, since all transforms treat all channels alike.
    fast:       --decode fast: JPEG files are decoded at reduced size if that is enough, and other images are resized by
                torch instead of Pillow.
    """
    transforms: list
    fast: bool = False

    def __call__(self, photo):
        return v2.functional.to_dtype(self.load(photo).permute(2, 0, 1).contiguous(), torch.float32, scale=True)

    def load(self, photo):
        """The same as a uint8 tensor [H, W, 3], which has a quarter of the bytes that a data worker has to send."""
        first, *others = self.transforms
        if isinstance(first, v2.RandomResizedCrop):
            image = self.resized(photo, first.size, **first.make_params([blank(photo.height, photo.width)]))
        elif isinstance(first, v2.Resize):
            image = self.resized(photo, size_after(first, photo), 0, 0, photo.height, photo.width)
        else:
            image = first(as_pillow(np.asarray(photo)))
        for transform in others:
            image = transform(image)
        return self.pixels(image)

    def collate(self, loaded):
        """A list of B results of `load` -> what a data worker sends, here the batch, uint8 [B, 3, H, W]."""
        return torch.utils.data.default_collate(loaded).permute(0, 3, 1, 2)

    def finish(self, batch):
        """The result of `collate` -> uint8 [B, 3, H, W]. Runs in the main process."""
        return batch

    def resized(self, photo, size, top, left, height, width):
        """A region of the photo, resized to `size`: a PIL image, or a uint8 tensor [3 or 1, *size]."""
        resize = resized_fast if self.fast else resized_by_pillow
        return resize(photo, size, top, left, height, width, self.transforms[0].interpolation.value)

    @staticmethod
    def pixels(image):
        """A PIL image, or a tensor [3 or 1, H, W] -> uint8 tensor [H, W, 3]."""
        if isinstance(image, Image.Image):
            return torch.from_numpy(np.array(image).reshape(image.height, image.width, -1)).expand(-1, -1, 3)
        return image.permute(1, 2, 0).expand(-1, -1, 3)


def blank(height, width):
    """A tensor of the size of an image, from which torchvision's transforms can sample their parameters."""
    return torch.empty(1, height, width, device='meta')


def as_pillow(pixels):
    """uint8 array [H, W, 3 or 1] -> a PIL image in RGB or L."""
    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])


def resized_by_pillow(photo, size, top, left, height, width, interpolation='bilinear'):
    """
    The region of the photo of `height` x `width` pixels at (top, left), resized to `size`, (height, width).
    interpolation: bilinear or bicubic.
    """
    region = as_pillow(np.asarray(photo)[top:top + height, left:left + width])
    return region.resize((size[1], size[0]), Image.Resampling[interpolation.upper()])


def resized_fast(photo, size, top, left, height, width, interpolation='bilinear'):
    """As resized_by_pillow, of a photo decoded at reduced size if that is enough; otherwise by torch, as a tensor."""
    pixels, y, x = reduced(photo, size, height, width)
    if y < 1:                               # the region may begin or end within a pixel, which only Pillow supports
        box = left * x, top * y, min((left + width) * x, pixels.shape[1]), min((top + height) * y, pixels.shape[0])
        return as_pillow(pixels).resize((size[1], size[0]), Image.Resampling[interpolation.upper()], box)
    images = torch.from_numpy(pixels[top:top + height, left:left + width])[None]
    images = images.permute(0, 3, 1, 2)     # the layout that torch resizes fastest
    return F.interpolate(images, size, mode=interpolation, antialias=True)[0]


def reduced(photo, size, height, width):
    """
    The photo, decoded at the smallest size at which a region of `height` x `width` pixels still has at least `size`:
    uint8 [h, w, 3 or 1], and the factors of vertical and of horizontal distances.
    """
    scale = next((scale for scale in (8, 4, 2) if height >= scale * size[0] and width >= scale * size[1]), 1)
    pixels = np.array(photo) if isinstance(photo, Image.Image) else photo.decode(scale)
    return pixels, pixels.shape[0] / photo.height, pixels.shape[1] / photo.width


def size_after(resize, photo):
    """The (height, width) to which v2.Resize resizes a photo; a single number is the length of the shorter side."""
    if len(resize.size) == 2:
        return resize.size
    shorter, longer = resize.size[0], int(resize.size[0] * max(photo.height, photo.width)
                                          / min(photo.height, photo.width))
    return (shorter, longer) if photo.height <= photo.width else (longer, shorter)
