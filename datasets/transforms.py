"""Image pipelines, decoding.Photo -> RGB tensor; the network converts it to its own format."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision.transforms import v2

from utilities.errors import choose


def shorter_side(size):
    """Length that the shorter side is resized to before a crop of `size`: 256 for sizes 224 to 256, else 8/7 of it."""
    return 256 if 224 <= size <= 256 else round(size * 8 / 7)


def centre(size):
    return [v2.Resize(shorter_side(size)), v2.CenterCrop(size)]


def base(size):
    """Roth et al.: a random crop of 8 to 100 % of the area, flipped with probability 0.5."""
    return [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()], centre(size)


def adv(size):
    """base with random changes of colour and brightness."""
    colours = [v2.RandomGrayscale(0.2), v2.ColorJitter(0.2, 0.2, 0.2, 0.2)]
    return [v2.RandomResizedCrop(size), *colours, v2.RandomHorizontalFlip()], centre(size)


def red(size):
    """base without random scaling: a crop of fixed size."""
    return [v2.Resize(shorter_side(size)), v2.RandomCrop(size), v2.RandomHorizontalFlip()], centre(size)


def mlrc(size):
    """Musgrave et al., ECCV 2020: the image is resized, then a random crop of 16 to 100 % of its area is taken."""
    crop = v2.RandomResizedCrop(size, scale=(0.16, 1), ratio=(0.75, 1.33))
    return [v2.Resize(shorter_side(size)), crop, v2.RandomHorizontalFlip()], centre(size)


def characters(size):
    """Small images of characters: slightly rotated, shifted, scaled and sheared on white; never flipped or cropped."""
    affine = v2.RandomAffine(degrees=10, translate=(0.1, 0.1), scale=(0.85, 1.15), shear=5, fill=255,
                             interpolation=v2.InterpolationMode.BILINEAR)
    return [affine, v2.Resize((size, size))], [v2.Resize((size, size))]


AUGMENTATIONS = {'base': base, 'adv': adv, 'big': base, 'red': red, 'mlrc': mlrc, 'characters': characters}
SIZES = {'big': 256, 'mlrc': 227}              # for augmentations that set the image size themselves


def select(opt, size, are_characters=False):
    """--augmentation -> (training, evaluation) pipelines for `size` pixels; for characters, base means `characters`."""
    choose(AUGMENTATIONS, opt.augmentation, '--augmentation')
    name = 'characters' if opt.augmentation == 'base' and are_characters else opt.augmentation
    return tuple(Pipeline(steps, opt.decode == 'fast') for steps in AUGMENTATIONS[name](size))


@dataclass
class Pipeline:
    """
    A decoding.Photo, or a PIL image in RGB -> float32 RGB tensor [3, H, W] in [0, 1].

    transforms: of torchvision. If the first one is a crop or a resizing, only the pixels that it needs are decoded and
                copied. Grey images have one channel until the end, since all transforms treat the channels alike.
    fast:       --decode fast: large JPEG files are decoded at reduced size, and resized by torch in place of Pillow.
    """
    transforms: list
    fast: bool = False

    def __call__(self, photo):
        return v2.functional.to_dtype(self.load(photo).permute(2, 0, 1).contiguous(), torch.float32, scale=True)

    def load(self, photo):
        """The same as a uint8 tensor [H, W, 3], a quarter of the bytes for a data worker to hand over."""
        first, *others = self.transforms
        resized = resized_by_torch if self.fast else resized_by_pillow
        if isinstance(first, v2.RandomResizedCrop):
            crop = first.make_params([torch.empty(1, photo.height, photo.width, device='meta')])
            image = resized(photo, first.size, **crop)
        elif isinstance(first, v2.Resize):
            image = resized(photo, size_after(first, photo), 0, 0, photo.height, photo.width)
        else:
            image = first(as_pillow(np.asarray(photo)))
        for step in others:
            image = step(image)
        if isinstance(image, Image.Image):
            pixels = torch.from_numpy(np.array(image).reshape(image.height, image.width, -1))
        else:
            pixels = image.permute(1, 2, 0)
        return pixels.expand(-1, -1, 3)


def as_pillow(pixels):
    """uint8 array [H, W, 3 or 1] -> a PIL image in RGB or L."""
    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])


def resized_by_pillow(photo, size, top, left, height, width):
    """The region of the photo of `height` x `width` pixels at (top, left), resized to `size`, (height, width)."""
    region = as_pillow(np.asarray(photo)[top:top + height, left:left + width])
    return region.resize((size[1], size[0]), Image.Resampling.BILINEAR)


def resized_by_torch(photo, size, top, left, height, width):
    """As resized_by_pillow, but a uint8 tensor [3 or 1, *size], of a photo decoded at reduced size if that suffices."""
    scale = next((scale for scale in (8, 4, 2) if height >= scale * size[0] and width >= scale * size[1]), 1)
    pixels = np.array(photo) if isinstance(photo, Image.Image) else photo.decode(scale)
    y, x = pixels.shape[0] / photo.height, pixels.shape[1] / photo.width
    region = pixels[round(top * y):round((top + height) * y), round(left * x):round((left + width) * x)]
    images = torch.from_numpy(region)[None].permute(0, 3, 1, 2)            # the layout that torch resizes fastest
    return F.interpolate(images, size, mode='bilinear', antialias=True)[0]


def size_after(resize, photo):
    """The (height, width) that v2.Resize gives a photo; of one number, it is the length of the shorter side."""
    if len(resize.size) == 2:
        return resize.size
    shorter, longer = resize.size[0], int(resize.size[0] * max(photo.height, photo.width)
                                          / min(photo.height, photo.width))
    return (shorter, longer) if photo.height <= photo.width else (longer, shorter)


def shared(training, evaluation):
    """
    The resizing that both pipelines begin with, or None.

    It leaves an image that it has resized before unchanged, so the pipelines may be given resized images.
    """
    first = training.transforms[0]
    return first if isinstance(first, v2.Resize) and repr(first) == repr(evaluation.transforms[0]) else None
