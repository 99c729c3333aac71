"""Image pipelines, PIL image -> float32 RGB tensor [3, H, W] in [0, 1], which the network brings into its format."""
import torch
from torchvision.transforms import v2

from utilities.errors import choose

TO_TENSOR = (v2.ToImage(), v2.ToDtype(torch.float32, scale=True))


def shorter_side(size):
    """What the shorter side is resized to before a crop of `size`: 256 for 224 to 256, else in the proportion 8/7."""
    return 256 if 224 <= size <= 256 else round(size * 8 / 7)


def centre(size):
    return [v2.Resize(shorter_side(size)), v2.CenterCrop(size)]


def base(size):
    """Roth et al.: a random part of 8 to 100 % of the area, flipped half of the time."""
    return [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()], centre(size)


def adv(size):
    """base with changes of colour and brightness."""
    colours = [v2.RandomGrayscale(0.2), v2.ColorJitter(0.2, 0.2, 0.2, 0.2)]
    return [v2.RandomResizedCrop(size), *colours, v2.RandomHorizontalFlip()], centre(size)


def red(size):
    """base without a change of scale."""
    return [v2.Resize(shorter_side(size)), v2.RandomCrop(size), v2.RandomHorizontalFlip()], centre(size)


def mlrc(size):
    """Musgrave et al., ECCV 2020: parts of 16 to 100 % of the area, of the picture resized first."""
    crop = v2.RandomResizedCrop(size, scale=(0.16, 1), ratio=(0.75, 1.33))
    return [v2.Resize(shorter_side(size)), crop, v2.RandomHorizontalFlip()], centre(size)


def characters(size):
    """Small pictures of characters: slightly turned, moved and scaled on their white ground; never flipped or cut."""
    affine = v2.RandomAffine(degrees=10, translate=(0.1, 0.1), scale=(0.85, 1.15), shear=5, fill=255,
                             interpolation=v2.InterpolationMode.BILINEAR)
    return [affine, v2.Resize((size, size))], [v2.Resize((size, size))]


AUGMENTATIONS = {'base': base, 'adv': adv, 'big': base, 'red': red, 'mlrc': mlrc, 'characters': characters}
SIZES = {'big': 256, 'mlrc': 227}              # where an augmentation, not the network, sets the size


def select(opt, size, are_characters=False):
    """--augmentation -> (training, evaluation) pipelines for `size` pixels; base is `characters` for characters."""
    choose(AUGMENTATIONS, opt.augmentation, '--augmentation')
    name = 'characters' if opt.augmentation == 'base' and are_characters else opt.augmentation
    return tuple(v2.Compose([*steps, *TO_TENSOR]) for steps in AUGMENTATIONS[name](size))


def shared(training, evaluation):
    """
    The resizing that both pipelines begin with, or None.

    An image that went through it passes a second time unchanged, so the pipelines can be given its results as well.
    """
    first = training.transforms[0]
    return first if isinstance(first, v2.Resize) and repr(first) == repr(evaluation.transforms[0]) else None
