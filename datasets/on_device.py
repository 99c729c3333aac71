"""
--augment_on_gpu: the device resizes crops, flips images, changes colours and erases rectangles, for a whole batch at a
time.

Data workers decode the images, resize them if the augmentation begins with a resizing, and sample the same random
numbers as torchvision's transforms. Each image is therefore augmented as without the flag, except for rounding.
"""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torchvision.transforms import v2

from datasets.decoding import Photo
from datasets.pipeline import MARGIN, Pipeline, blank, reduced, size_after
from datasets.transforms import ERASED

CROPS = v2.RandomResizedCrop, v2.RandomCrop
WEIGHTS = (0.299, 0.587, 0.114)                    # weights of red, green and blue in a grey level, ITU-R BT.601
NO_COLOURS = (0, 1, 2, 3, 1., 1., 1., 0.)          # the order of the four changes below, and factors without effect


@dataclass
class DevicePipeline:
    """
    A Pipeline in which `finish` resizes crops, flips images, changes colours and erases rectangles on `device`.

    A data worker sends an image as (region, plan). The region has the pixels of the crop, uint8 [H, W, 3]. The plan is
    float32 [16]: H, W, whether to flip, whether to convert to grey, the order (4) and the factors (4) of the changes of
    brightness, contrast, saturation and hue, and top, left, height and width of the erased rectangle.
    """
    pipeline: Pipeline
    device: torch.device

    @property
    def transforms(self):
        return self.pipeline.transforms

    def __call__(self, photo):
        images = self.finish(self.collate([self.load(photo, self.sample(photo))]))
        return v2.functional.to_dtype(images[0], torch.float32, scale=True)

    def sample(self, photo):
        """The arguments of the crop, and the last 14 numbers of the plan."""
        height, width = photo.height, photo.width
        first, *others = self.transforms
        if isinstance(first, v2.Resize):
            height, width = size_after(first, photo)
            first, *others = others
        crop = first.make_params([blank(height, width)])
        return [crop[name] for name in ('top', 'left', 'height', 'width')], sampled(others, first.size)

    def load(self, photo, chosen):
        """The photo with the result of `sample` -> (region, plan)."""
        (top, left, height, width), numbers = chosen
        first, second, *_ = self.transforms
        if isinstance(first, v2.Resize):
            whole = self.pipeline.resized(photo, size_after(first, photo), 0, 0, photo.height, photo.width)
            whole = np.array(Pipeline.pixels(whole))
            photo, first = Photo(*whole.shape[:2], lambda scale: whole), second
        decode = self.pipeline.decode_of(photo)
        size, margin = (height, width) if decode == 'exact' else first.size, MARGIN if decode == 'auto' else 1
        pixels, y, x = reduced(photo, size, height, width, margin)
        region = pixels[round(top * y):round((top + height) * y), round(left * x):round((left + width) * x)]
        region = torch.from_numpy(region).expand(-1, -1, 3).contiguous()
        return region, torch.tensor([*region.shape[:2], *numbers])

    def collate(self, loaded):
        regions, plans = zip(*loaded, strict=True)
        return torch.cat([region.flatten() for region in regions]), torch.stack(plans)

    def finish(self, batch):
        """The result of `collate` -> uint8 [B, 3, S, S] on the device."""
        pixels, plans = batch
        pixels, sizes = pixels.to(self.device, non_blocking=True), plans[:, :2].long()
        regions = pixels.split((3 * sizes.prod(dim=1)).tolist())
        images = torch.cat([self.resized(region, *size) for region, size in zip(regions, sizes.tolist(), strict=True)])
        flipped, grey, order, factors = plans[:, 2] > 0, plans[:, 3] > 0, plans[:, 4:8], plans[:, 8:12]
        images = torch.where(on_all(flipped, images), images.flip(3), images)
        if any(isinstance(transform, v2.ColorJitter) for transform in self.transforms):
            images = torch.where(on_all(grey, images), grey_levels(images), images)
            images = changed(images, order, factors)
        if any(isinstance(transform, v2.RandomErasing) for transform in self.transforms):
            images = erased(images, plans[:, 12:])
        return images.mul_(255).round_().to(torch.uint8)

    def resized(self, region, height, width):
        """uint8 [3 H W] -> float32 [1, 3, S, S] in [0, 1]."""
        crop = next(transform for transform in self.transforms if isinstance(transform, CROPS))
        image = region.view(1, height, width, 3).permute(0, 3, 1, 2).to(torch.float32).div_(255)
        if image.shape[2:] == tuple(crop.size):
            return image
        mode = getattr(crop, 'interpolation', v2.InterpolationMode.BILINEAR).value
        image = F.interpolate(image, tuple(crop.size), mode=mode, antialias=True)
        return image.clamp_(0, 1) if mode == 'bicubic' else image          # bicubic exceeds the pixels' range


def sampled(transforms, size):
    """
    The last 14 numbers of a plan: the random numbers for flip, colours and erasing, sampled as by torchvision's
    transforms. size: (height, width) of the augmented image.
    """
    flip, grey, colours, rectangle = 0, 0, NO_COLOURS, (0, 0, 0, 0)
    for transform in transforms:
        if isinstance(transform, v2.ColorJitter):
            chosen = transform.make_params([])
            factors = [chosen[f'{name}_factor'] for name in ('brightness', 'contrast', 'saturation', 'hue')]
            colours = (*chosen['fn_idx'].tolist(), *(without if factor is None else factor for factor, without
                                                     in zip(factors, NO_COLOURS[4:], strict=True)))
        elif isinstance(transform, v2.RandomGrayscale):
            grey = float(torch.rand(1) < transform.p)
        elif isinstance(transform, v2.RandomHorizontalFlip):
            flip = float(torch.rand(1) < transform.p)
        elif isinstance(transform, v2.RandomErasing) and torch.rand(1) < transform.p:
            chosen = transform.make_params([blank(*size).expand(3, -1, -1)])
            if chosen['v'] is not None:                    # v is None if no rectangle fits
                rectangle = [chosen[name] for name in 'ijhw']
    return flip, grey, *colours, *rectangle


def on_all(values, images):
    """values [B] -> [B, 1, 1, 1] on the device of the images, for products and choices per image."""
    return values.to(images.device, non_blocking=True).view(-1, 1, 1, 1)


def grey_levels(images):
    """[B, 3, H, W] -> [B, 1, H, W]."""
    weights = torch.tensor(WEIGHTS).to(images.device, non_blocking=True)
    return (images * weights.view(3, 1, 1)).sum(dim=1, keepdim=True)


def brightness(images, factors):
    return images * factors


def contrast(images, factors):
    return torch.lerp(grey_levels(images).mean(dim=(2, 3), keepdim=True), images, factors)


def saturation(images, factors):
    return torch.lerp(grey_levels(images), images, factors)


def hue(images, shifts):
    """shifts: [B, 1, 1, 1], in full turns of the colour circle. Smith, Color Gamut Transform Pairs, 1978 (HSV)."""
    red, green, blue = images.unbind(dim=1)
    largest, chroma = images.amax(dim=1), images.amax(dim=1) - images.amin(dim=1)
    safe = chroma.clamp(min=1e-6)
    angle = torch.where(largest == red, (green - blue) / safe, torch.where(
        largest == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)) + 6 * shifts.squeeze(1)
    distances = [(offset + angle) % 6 for offset in (5, 3, 1)]
    return torch.stack([largest - chroma * torch.minimum(distance, 4 - distance).clamp(0, 1) for distance in distances],
                       dim=1)


def changed(images, order, factors):
    """
    Changes the brightness, contrast, saturation and hue of images [B, 3, H, W] in [0, 1]. Each image has its own
    `factors` [B, 4] and `order` [B, 4] of the changes. Both are on the CPU, so that the host does not wait for the
    device.
    """
    for step in range(4):
        for number, change in enumerate((brightness, contrast, saturation, hue)):
            chosen = np.flatnonzero(order[:, step] == number)
            if len(chosen):
                rows = torch.from_numpy(chosen).to(images.device, non_blocking=True)
                values = on_all(factors[chosen, number], images)
                images[rows] = change(images[rows], values).clamp_(0, 1)
    return images


def erased(images, rectangles):
    """Images [B, 3, H, W] in [0, 1], filled with the colour ERASED in `rectangles` [B, 4]: top, left, height, width."""
    top, left, height, width = (on_all(values, images) for values in rectangles.T)
    y = torch.arange(images.shape[2], device=images.device).view(1, 1, -1, 1)
    x = torch.arange(images.shape[3], device=images.device)
    inside = (y >= top) & (y < top + height) & (x >= left) & (x < left + width)
    colour = torch.tensor(ERASED).to(images, non_blocking=True).div(255).view(3, 1, 1)
    return torch.where(inside, colour, images)
