"""
Images of more than 8 bits per channel: which of their values is white, and their pixels in 8 bits.

A file says how many bits its values have, but not which of them are used: many programs write 8-bit values into files
of 16 or 32 bits.
"""
import re
import sys

import numpy as np
from PIL import Image

# kind of values: those that may be white; white is the first that no value exceeds
WHITES = {'floating-point': (1,), '32-bit': (255, 65535), '16-bit': (255, 65535)}
COLOURS = re.compile(r'(?<=RGB;16|GBA;16)[BLN]')       # in Pillow's names of 16-bit colours: the order of their bytes
OTHER_ORDER = {'B': 'L', 'L': 'B', 'N': 'B' if sys.byteorder == 'little' else 'L'}


class OutOfRange(ValueError):
    """Values for which no white is known."""


def kind(image):
    """The kind of values (WHITES) of an opened PIL image; None for 8 bits. Call it before colours load."""
    if image.mode in ('F', 'I'):
        return {'F': 'floating-point', 'I': '32-bit'}[image.mode]
    return '16-bit' if image.mode.startswith('I;16') or has_deep_colours(image) else None


def has_deep_colours(image):
    """Whether an opened PIL image, not loaded yet, has 16-bit colours, of which Pillow would load the upper bytes."""
    tiles = getattr(image, 'tile', None)
    return bool(tiles and COLOURS.search(str(tiles[0][3])))


def white(image):
    """The white of an opened PIL image by its own values, which are loaded. Raises OutOfRange if there is none."""
    found = kind(image)
    if has_deep_colours(image):
        return WHITES[found][int(np.asarray(image)[..., :3].any())]
    return white_of(np.asarray(image), WHITES[found])


def white_of(values, whites):
    """The first of `whites` that no value exceeds. Raises OutOfRange if there is none."""
    low, high = values.min(), values.max()
    for found in whites:
        if 0 <= low and high <= found:                     # neither is true of NaN
            return found
    raise OutOfRange(f'its values lie between {low:g} and {high:g}; expected floats in [0, 1], or integers from 0 to '
                     '255 or to 65,535')


def keep_lower_bytes(image):
    """Lets Pillow load the lower bytes of 16-bit colours, as if they were the upper ones of the other byte order."""
    def swapped(name):
        return COLOURS.sub(lambda order: OTHER_ORDER[order[0]], name)

    tiles = []
    for *place, arguments in image.tile:
        if isinstance(arguments, str):
            arguments = swapped(arguments)
        else:
            arguments = swapped(arguments[0]), *arguments[1:]
        tiles.append((*place, arguments))
    image.tile = tiles


def in_8_bits(image, white=None):
    """
    A loaded PIL image of one channel of more than 8 bits -> in L. white: the value that becomes 255; None: by the
    image's own values. Of 16 bits, the upper 8 are kept, as Pillow does with colours.
    """
    values = np.asarray(image)
    possible = (white,) if white else WHITES[kind(image)]
    white = white_of(values, possible)
    if white == 65535:
        values = values >> 8
    else:
        values = np.rint(values * (255 / white))
    return Image.fromarray(values.astype(np.uint8))
