"""From a photo to the pixels of a batch."""
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

    def transform(self, image, params):
        height, width = v2.functional.get_size(image)
        choose = max if self.covers else min
        scale = choose(self.size[0] / height, self.size[1] / width)
        fitted = round(height * scale), round(width * scale)
        size = [max(1, choose(side, limit)) for side, limit in zip(fitted, self.size, strict=True)]
        return v2.functional.resize(image, size, interpolation=self.interpolation, antialias=self.antialias)


class PadTo(v2.Transform):
    """Pads an image in RGB evenly to `size` (height, width) with a colour."""

    def __init__(self, size, colour):
        super().__init__()
        self.size = size
        self.colour = colour

    def transform(self, image, params):
        height, width = v2.functional.get_size(image)
        left, top = (self.size[1] - width) // 2, (self.size[0] - height) // 2
        sides = [left, top, self.size[1] - width - left, self.size[0] - height - top]
        return v2.functional.pad(image, sides, fill=list(self.colour))


@dataclass
class Pipeline:
    """
    A PIL image in RGB or L -> float32 RGB tensor [3, H, W] in [0, 1].

    transforms: torchvision's, or other functions of a PIL image or tensor; `pixels` says what the last one may return.
                Grey images have one channel until the end, since all transforms treat all channels alike.
    """
    transforms: list

    def __call__(self, image):
        image = self.collate([self.load(image)])[0]
        return v2.functional.to_dtype(image.contiguous(), torch.float32, scale=True)

    def load(self, image):
        """
        A PIL image -> uint8 [H, W, 3 or 1], a quarter of the bytes of the float image: an array that cannot be written
        to, or a tensor. float32 where the transforms return floats.
        """
        for transform in self.transforms:
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
        found = type(image).__name__
        if isinstance(image, Image.Image):
            found = f'a PIL image of mode {image.mode}'
        elif isinstance(image, torch.Tensor) and image.numel():
            found = (f'a tensor {list(image.shape)} of {str(image.dtype).removeprefix("torch.")} from '
                     f'{image.min():.3g} to {image.max():.3g}')
        raise UserError(f'the transforms of the images return {found}; expected a PIL image in RGB or L, or a tensor '
                        '[3 or 1, H, W] of bytes (uint8) or of floats in [0, 1], which the network normalises')
