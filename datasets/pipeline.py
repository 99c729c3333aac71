"""From a photo to the pixels of a batch: applies torchvision's transforms to only those pixels that they need."""
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from utilities.errors import UserError


class Fit(v2.Resize):
    """
    Resizes an image in its own ratio: to the largest size inside the box `size` (height, width), or, if it `covers` the
    box, to the smallest size around it.
    """

    def __init__(self, size, covers):
        super().__init__(size)
        self.covers = covers

    def size_of(self, height, width):
        """The (height, width) to which an image of this size is resized."""
        choose = max if self.covers else min
        scale = choose(self.size[0] / height, self.size[1] / width)
        fitted = round(height * scale), round(width * scale)
        return tuple(max(1, choose(side, limit)) for side, limit in zip(fitted, self.size, strict=True))

    def transform(self, image, params):
        size = self.size_of(*v2.functional.get_size(image))
        return v2.functional.resize(image, size, interpolation=self.interpolation, antialias=self.antialias)


class PadTo(v2.Transform):
    """Pads an image in RGB evenly to `size` (height, width) with a colour."""

    def __init__(self, size, colour):
        super().__init__()
        self.size, self.colour = size, colour

    def transform(self, image, params):
        height, width = v2.functional.get_size(image)
        left, top = (self.size[1] - width) // 2, (self.size[0] - height) // 2
        sides = [left, top, self.size[1] - width - left, self.size[0] - height - top]
        return v2.functional.pad(image, sides, fill=list(self.colour))


@dataclass
class Pipeline:
    """
    A decoding.Photo, or a PIL image in RGB -> float32 RGB tensor [3, H, W] in [0, 1].

    transforms: torchvision's, or other functions of a PIL image or tensor; `pixels` says what the last one may return.
                If the first one is a crop or a resizing, only the pixels that it needs are copied. Grey
                images have one channel until the end, since all transforms treat all channels alike.
    """
    transforms: list

    def __call__(self, photo):
        image = self.collate([self.load(photo, self.sample(photo))])[0]
        return v2.functional.to_dtype(image.contiguous(), torch.float32, scale=True)

    def sample(self, photo):
        """
        The random numbers for a photo that is not decoded yet: the arguments of a crop and whether to flip. None if
        there are other transforms, whose random numbers are sampled when they are applied.
        """
        if [type(transform) for transform in self.transforms] != [v2.RandomResizedCrop, v2.RandomHorizontalFlip]:
            return None
        crop, flip = self.transforms
        return crop.make_params([blank(photo.height, photo.width)]), torch.rand(1).item() < flip.p

    def load(self, photo, chosen):
        """
        The photo with the result of `sample` -> uint8 [H, W, 3 or 1], a quarter of the bytes of the float image: an
        array that cannot be written to, or a tensor. float32 where the transforms return floats.
        """
        first, *others = self.transforms
        if chosen:
            crop, flip = chosen
            image = self.resized(photo, first.size, **crop)
            return self.pixels(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image)
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
        """A list of B results of `load` -> the batch that a data worker sends, uint8 or float32 [B, 3, H, W]."""
        are_floats = any(pixels.dtype == torch.float32 for pixels in loaded)
        if are_floats:
            loaded = [pixels if pixels.dtype == torch.float32 else pixels / np.float32(255) for pixels in loaded]
        batch = torch.empty(len(loaded), *loaded[0].shape[:2], 3, dtype=torch.float32 if are_floats else torch.uint8)
        for image, pixels in zip(batch.numpy(), loaded, strict=True):
            if pixels.shape[2] == 3:
                image[:] = pixels
            else:
                for channel in range(3):                   # four times as fast as NumPy's broadcasting to the last axis
                    image[..., channel] = pixels[..., 0]
        return batch.permute(0, 3, 1, 2)

    def resized(self, photo, size, top, left, height, width):
        """
        The region of the photo of `height` x `width` pixels at (top, left), resized to `size`, (height, width), by
        Pillow.
        """
        region = as_pillow(np.asarray(photo), top, left, height, width)
        method = Image.Resampling[self.transforms[0].interpolation.value.upper()]
        return region.resize((size[1], size[0]), method)

    @staticmethod
    def pixels(image):
        """
        A PIL image in RGB or L, or a tensor [3 or 1, H, W], uint8 or floats in [0, 1] -> [H, W, 3 or 1], an array or a
        tensor, uint8 or float32. Raises UserError for anything else.
        """
        if isinstance(image, Image.Image) and image.mode in ('RGB', 'L'):
            return np.asarray(image).reshape(image.height, image.width, -1)
        if isinstance(image, torch.Tensor) and image.dim() == 3 and image.shape[0] in (1, 3):
            if image.dtype == torch.uint8:
                return image.permute(1, 2, 0)
            if image.is_floating_point() and 0 <= image.min() and image.max() <= 1:
                return image.permute(1, 2, 0).float()
        what = (f'a PIL image of mode {image.mode}' if isinstance(image, Image.Image) else
                f'a tensor {list(image.shape)} of {str(image.dtype).removeprefix("torch.")} from {image.min():.3g} to '
                f'{image.max():.3g}' if isinstance(image, torch.Tensor) and image.numel() else type(image).__name__)
        raise UserError(f'the transforms of the images return {what}; expected a PIL image in RGB or L, or a tensor '
                        '[3 or 1, H, W] of bytes (uint8) or of floats in [0, 1], which the network normalises')


def blank(height, width):
    """A tensor of the size of an image, from which torchvision's transforms can sample their parameters."""
    return torch.empty(1, height, width, device='meta')


def as_pillow(pixels, top=0, left=0, height=None, width=None):
    """
    A region of a contiguous uint8 array [H, W, 3 or 1], by default all of it, as a PIL image in RGB or L.

    The pixels are copied once; Image.fromarray would copy a region's pixels twice.
    """
    n_rows, n_columns, n_channels = pixels.shape
    height = height or n_rows
    width = width or n_columns
    stride = n_columns * n_channels
    start, stop = top * n_columns + left, (top + height - 1) * n_columns + left + width
    mode = 'RGB' if n_channels == 3 else 'L'
    image = Image.new(mode, (width, height), None)                      # None: its pixels are not initialised
    image.frombytes(pixels.reshape(-1)[start * n_channels:stop * n_channels], 'raw', mode, stride, 1)
    return image


def size_after(resize, photo):
    """The (height, width) to which v2.Resize resizes a photo; a single number is the length of the shorter side."""
    if isinstance(resize, Fit):
        return resize.size_of(photo.height, photo.width)
    if len(resize.size) == 2:
        return resize.size
    shorter = resize.size[0]
    longer = int(shorter * max(photo.height, photo.width) / min(photo.height, photo.width))
    return (shorter, longer) if photo.height <= photo.width else (longer, shorter)
