"""
Augmentations: the training and the evaluation transforms of images, for a `size` that is one number or (height, width).

Each function imports torchvision itself, which takes as long as torch, so that flags are read without it.
"""
from flags.command_line import text_of
from utilities.errors import UserError, choose
from utilities.image_size import scaled, sides


def shorter_side(size):
    """Length of the shorter side before a crop of `size`: 256 for sizes 224 to 256, otherwise 8/7 of the size."""
    shorter = min(sides(size))
    return 256 if 224 <= shorter <= 256 else round(shorter * 8 / 7)


def enlarged(size, shorter):
    """Resizes an image, in its ratio, before a crop of `size`: to cover the crop enlarged to this shorter side."""
    from torchvision.transforms import v2

    from datasets.pipeline import Fit
    height, width = sides(size)
    if height == width:
        return v2.Resize(shorter)
    return Fit(scaled(size, shorter / min(height, width)), covers=True)


def random_crop(size, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)):
    """A random crop, resized to `size`. ratio: limits of its width / height, relative to those of `size`."""
    from torchvision.transforms import v2
    height, width = sides(size)
    return v2.RandomResizedCrop(size, scale=scale, ratio=tuple(limit * (width / height) for limit in ratio))


def centre(size):
    from torchvision.transforms import v2
    return [enlarged(size, shorter_side(size)), v2.CenterCrop(size)]


def stretched(size):
    from torchvision.transforms import v2
    return [v2.Resize(sides(size))]


def padded(size):
    """The whole image in its ratio, with the mean colour around it."""
    from torchvision.transforms import v2

    from datasets.pipeline import Fit, PadTo
    return [Fit(sides(size), covers=False), v2.RGB(), PadTo(sides(size), ERASED)]


def base(size):
    """Roth et al.: a random crop of 8 to 100 % of the area, flipped with probability 0.5."""
    from torchvision.transforms import v2
    return [random_crop(size), v2.RandomHorizontalFlip()], centre(size)


def adv(size):
    """base with random changes of colour and brightness."""
    from torchvision.transforms import v2
    colours = [v2.RandomGrayscale(0.2), v2.ColorJitter(0.2, 0.2, 0.2, 0.2)]
    return [random_crop(size), *colours, v2.RandomHorizontalFlip()], centre(size)


def red(size):
    """base without random scaling: a crop of fixed size."""
    from torchvision.transforms import v2
    return [enlarged(size, shorter_side(size)), v2.RandomCrop(size), v2.RandomHorizontalFlip()], centre(size)


def mlrc(size):
    """Musgrave et al., ECCV 2020: the image is resized, then a random crop of 16 to 100 % of its area is taken."""
    from torchvision.transforms import v2
    crop = random_crop(size, scale=(0.16, 1), ratio=(0.75, 1.33))
    return [v2.Resize(shorter_side(size)), crop, v2.RandomHorizontalFlip()], centre(size)


def reid(size):
    """
    Luo et al., Bag of Tricks, CVPR Workshops 2019: the whole image is stretched to `size`, padded by 10 black pixels,
    cropped at random to `size`, and flipped with probability 0.5.
    """
    from torchvision.transforms import v2
    return [*stretched(size), v2.Pad(10), v2.RandomCrop(size), v2.RandomHorizontalFlip()], stretched(size)


def none(size):
    """No augmentation: as in evaluation without --eval_resize and --eval_size."""
    return centre(size), centre(size)


def characters(size):
    """Small images of characters: slightly rotated, shifted, scaled and sheared on white; never flipped or cropped."""
    from torchvision.transforms import v2
    affine = v2.RandomAffine(degrees=10, translate=(0.1, 0.1), scale=(0.85, 1.15), shear=5, fill=255,
                             interpolation=v2.InterpolationMode.BILINEAR)
    return [affine, *stretched(size)], stretched(size)


AUGMENTATIONS = {'base': base, 'adv': adv, 'big': base, 'red': red, 'mlrc': mlrc, 'reid': reid, 'none': none,
                 'characters': characters}
FITS = {'crop': centre, 'stretch': stretched, 'pad': padded}
ERASED = (124, 116, 104)                       # fill colour of padding and --random_erasing: ImageNet's mean colour
SIZES = {'big': 256, 'mlrc': 227}              # augmentations that set the image size themselves


def check(opt):
    """Raises UserError for values of the augmentation flags that torchvision refuses."""
    for flag, limits in (('crop_scale', opt.crop_scale), ('crop_ratio', opt.crop_ratio)):
        if limits and limits[0] > limits[1]:
            raise UserError(f'--{flag} {text_of(limits)}: the first must not be greater than the second')
    if opt.color_jitter and opt.color_jitter[3] > 0.5:
        raise UserError(f'--color_jitter {text_of(opt.color_jitter)}: the last number, of the hue, must not exceed 0.5')
    if opt.randaugment and opt.randaugment[1] > 30:
        raise UserError(f'--randaugment {text_of(opt.randaugment)}: the second number, the magnitude, must not exceed '
                        '30')


def select(opt, size, are_characters=False):
    """--augmentation -> (training, evaluation) pipelines for images of `size`; for characters, base is `characters`."""
    from datasets.pipeline import Pipeline
    choose(AUGMENTATIONS, opt.augmentation, '--augmentation')
    name = 'characters' if opt.augmentation == 'base' and are_characters else opt.augmentation
    training, evaluation = AUGMENTATIONS[name](size)[0], AUGMENTATIONS[name](opt.eval_size or size)[1]
    if opt.eval_fit:
        evaluation = FITS[opt.eval_fit](opt.eval_size or size)
        training = FITS[opt.eval_fit](size) if name == 'none' else training
    adapt(opt, size, training, evaluation)
    training = with_further(opt, training, fill=255 if name == 'characters' else None)
    return Pipeline(training), Pipeline(evaluation)


def adapt(opt, size, training, evaluation):
    """
    Sets --crop_scale, --crop_ratio, --interpolation and --eval_resize, if given, in the transforms of an augmentation
    for images of `size`.

    Raises UserError if --eval_resize is less than the size of the crop.
    """
    from torchvision.transforms import v2
    crop = evaluation[-1]
    if isinstance(crop, v2.CenterCrop) and opt.eval_resize:
        if opt.eval_resize < min(crop.size):
            raise UserError(f'--eval_resize {opt.eval_resize}: evaluation crops {min(crop.size)} pixels out of it; '
                            'give at least as many, or a smaller --eval_size')
        evaluation[0] = enlarged(opt.eval_size or size, opt.eval_resize)
    for step in (*training, *evaluation):
        if isinstance(step, v2.RandomResizedCrop):
            step.scale, step.ratio = opt.crop_scale or step.scale, opt.crop_ratio or step.ratio
        if isinstance(step, v2.Resize | v2.RandomResizedCrop):
            step.interpolation = v2.InterpolationMode(opt.interpolation)


def is_random(opt):
    """Whether the training images are augmented at random."""
    return opt.augmentation != 'none' or bool(opt.color_jitter or opt.randaugment or opt.random_erasing)


def with_further(opt, training, fill):
    """
    The training transforms, followed by the transforms of --color_jitter (in place of adv's own), --randaugment and
    --random_erasing. fill: the grey level that RandAugment shifts into the image; None means black.
    """
    from torchvision.transforms import v2
    steps = [*training]
    if opt.color_jitter:
        steps = [step for step in steps if not isinstance(step, v2.ColorJitter)] + [v2.ColorJitter(*opt.color_jitter)]
    if opt.randaugment:
        steps.append(v2.RandAugment(*opt.randaugment, fill=fill))
    if opt.random_erasing:                                 # RandomErasing takes tensors only; its fill colour needs RGB
        steps += [v2.ToImage(), v2.RGB(), v2.RandomErasing(opt.random_erasing, value=ERASED)]
    return steps
