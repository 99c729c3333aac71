"""Sizes of images in pixels: one number, the side of a square; or (height, width)."""
from .errors import UserError  # relative: hubconf.py loads this file under another package's name

LARGEST = 10_000                                                          # the longest side of an image in evaluation


def sides(size):
    """(height, width)"""
    return (size, size) if isinstance(size, int) else tuple(size)


def written(size):
    """
    >>> written(224), written((256, 128))
    ('224', '256 x 128')
    """
    return str(size) if isinstance(size, int) else ' x '.join(map(str, size))


def scaled(size, factor):
    """(height, width) of an image that is scaled by a factor, at least one pixel each."""
    return tuple(max(1, round(side * factor)) for side in sides(size))


def in_evaluation(opt, size):
    """
    {flag and value: (height, width)} of all sizes but `size`, the network's, that images have in evaluation. Raises
    UserError for a view of more than LARGEST pixels.
    """
    found = {f'--eval_size {written(opt.eval_size)}': sides(opt.eval_size)} if opt.eval_size else {}
    factors = [view for view in opt.eval_views if view not in ('flip', 1)]
    for factor in factors:
        if factor * max(sides(opt.eval_size or size)) > LARGEST:
            raise UserError(f'--eval_views {factor:g}: it makes images of more than {LARGEST:,} pixels a side')
    return found | {f'--eval_views {factor:g}': scaled(opt.eval_size or size, factor) for factor in factors}
