"""The transforms of images in an experiment of powerful-benchmarker as flags."""
from datasets.transforms import SIZES, shorter_side
from tuning.experiment_folder import numbers_in

# the limits of the random crops of two values of --augmentation; those of base are torchvision's
PRESETS = {'mlrc': {'scale': [0.16, 1], 'ratio': [0.75, 1.33]}, 'base': {'scale': [0.08, 1], 'ratio': [3 / 4, 4 / 3]}}


def translate(options, settings, notes):
    """The augmentation, and the crops of training and evaluation; other transforms have no counterpart."""
    transforms = options.group('transforms')
    train = transforms.group('train')
    evaluated = transforms.group('eval')
    if train.values:
        training_images(train, settings)
    else:
        transforms.absent.append('transforms.train')
    size = settings.get('input_size') or SIZES.get(settings.get('augmentation'))
    crop = take_side(evaluated, 'CenterCrop')
    side = take_side(evaluated, 'Resize')
    if crop is None:
        transforms.absent.append('transforms.eval.CenterCrop')
        return
    if size is None:
        settings['input_size'] = crop
    elif crop != size:
        settings['eval_size'] = crop
    if side not in (None, shorter_side(crop)):
        settings['eval_resize'] = side
    if 'Resize' not in evaluated:
        evaluated.absent.append('transforms.eval.Resize')


def training_images(train, settings):
    """The random crop and the flip. An augmentation that resizes images first does so to its own size."""
    kind = 'RandomCrop' if 'RandomCrop' in train else 'RandomResizedCrop'
    size = take_side(train, kind)
    side = side_of(train, 'Resize')
    if size is None:
        train.absent.append(f'transforms.train.{kind}')
        return
    if kind == 'RandomCrop':
        settings['augmentation'] = 'red'
        if 'Resize' not in train:
            train.absent.append('transforms.train.Resize')
    else:
        settings['augmentation'] = 'mlrc' if 'Resize' in train else 'base'
        of_torch = PRESETS['base']
        own = PRESETS[settings['augmentation']]
        for name in ('scale', 'ratio'):
            limits = numbers_in(train.group(kind).take(name, of_torch[name]))
            if limits != own[name]:
                settings[f'crop_{name}'] = limits
    if size != SIZES.get(settings['augmentation']):
        settings['input_size'] = size
    if side == shorter_side(size):
        take_side(train, 'Resize')
    if 'RandomHorizontalFlip' not in train.values:
        train.absent.append('transforms.train.RandomHorizontalFlip')
    flip = train.group('RandomHorizontalFlip')
    if flip.values.get('p') == 0.5:
        flip.take('p')


def side_of(transforms, name):
    """The `size` of a transform as one whole number; None if it has no size, or resizes to a given height and width."""
    size = numbers_in(transforms.group(name).values.get('size'))
    if not size or len({*size}) > 1 or len(size) > 1 and name == 'Resize' or size[0] != size[0] // 1:
        return None
    return int(size[0])


def take_side(transforms, name):
    """The `size` of a transform as one whole number, which is taken out; None where side_of() finds none."""
    size = side_of(transforms, name)
    if size is not None:
        transforms.group(name).take('size')
    return size
