"""
Glyphs: letters of five scripts, rendered from the fonts that come with matplotlib. Nothing is downloaded.

Each class is one letter shape (Latin A, Greek Alpha and Cyrillic A are one class) with 20 images. They use all fonts
that contain the letter (sans, serif and mono, upright and oblique, regular and bold), with random rotation, shear,
scale, stroke width and noise. The images, PNG files of 40 x 40 pixels, are rendered once and kept in the cache folder.
"""
import hashlib
import tempfile
import unicodedata
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from tqdm import tqdm

from datasets.base import class_folders
from utilities import stopping
from utilities.errors import UserError
from utilities.files import cache_folder, writing

CHARACTERS = True            # its images must not be flipped or cropped
VERSION = 1
SIDE = 40                    # pixels per side of an image
PER_CLASS = 20               # images per class
MIN_FONTS = 8                # number of fonts that must contain a letter
TOLERANCE = 0.1              # root mean square difference of ink, in [0, 1], below which two shapes are the same
SCRIPTS = ('ARMENIAN', 'CYRILLIC', 'GEORGIAN', 'GREEK', 'LATIN')


def load(opt):
    return class_folders(folder())


def folder():
    """The folder of the images, with a hash of the fonts in its name; renders the images if it does not exist."""
    fonts = font_files()
    origin = hashlib.sha256(repr([VERSION, [(font.name, zlib.crc32(font.read_bytes())) for font in fonts]]).encode())
    path = cache_folder() / f'glyphs_{origin.hexdigest()[:8]}'
    if not path.exists():
        render_all(fonts, path)
    return path


def font_files():
    try:
        import matplotlib
    except ImportError:
        raise UserError('--dataset glyphs: its fonts come with matplotlib: pip install matplotlib') from None
    fonts = sorted((Path(matplotlib.get_data_path()) / 'fonts' / 'ttf').glob('*.ttf'))
    return [font for font in fonts if font.stem.startswith(('DejaVuSans', 'DejaVuSerif', 'STIXGeneral'))
            and 'Display' not in font.stem]


def letters(fonts):
    """{letter: fonts that contain it}, for letters of SCRIPTS without diacritics in at least MIN_FONTS fonts."""
    from matplotlib.ft2font import FT2Font
    in_fonts = {}
    for font in fonts:
        for code in FT2Font(str(font)).get_charmap():
            in_fonts.setdefault(chr(code), []).append(font)
    chosen = {}
    for letter in sorted(in_fonts):
        name = unicodedata.name(letter, '')
        if (unicodedata.category(letter) in ('Lu', 'Ll', 'Lo') and name.startswith(SCRIPTS) and ' WITH ' not in name
                and not unicodedata.decomposition(letter) and len(in_fonts[letter]) >= MIN_FONTS):
            chosen[letter] = in_fonts[letter]
    return chosen


def outline(letter, font):
    """The letter's ink scaled to 24 x 24 pixels, flat [576] in [0, 1], and the logarithm of width / height."""
    canvas = Image.new('L', (192, 160))
    ImageDraw.Draw(canvas).text((60, 30), letter, fill=255, font=font)
    left, top, right, bottom = canvas.getbbox()
    ink = canvas.crop((left, top, right, bottom)).resize((24, 24), Image.Resampling.BOX)
    return np.asarray(ink, np.float32).ravel() / 255, np.log((right - left) / (bottom - top))


def distinct(chosen):
    """`chosen` without letters that look like an earlier letter, apart from size, in a font that contains both."""
    letters = list(chosen)
    kept = []
    same = np.zeros((len(letters), len(letters)), bool)
    for font in {font for fonts in chosen.values() for font in fonts}:
        opened = ImageFont.truetype(str(font), 64)
        rows = np.array([row for row, letter in enumerate(letters) if font in chosen[letter]])
        same[np.ix_(rows, rows)] |= same_shapes(*zip(*(outline(letters[row], opened) for row in rows), strict=True))
    for row in range(len(letters)):
        if not same[row, kept].any():
            kept.append(row)
    return {letters[row]: chosen[letters[row]] for row in kept}


def same_shapes(inks, ratios):
    """N results of `outline` -> bool [N, N]: whether two of them have the same shape."""
    inks, ratios = np.array(inks, np.float64), np.array(ratios)
    products = inks @ inks.T
    squares = products.diagonal()
    differences = (squares[:, None] + squares - 2 * products) / inks.shape[1]              # mean squares
    return (differences < TOLERANCE ** 2) & (abs(ratios[:, None] - ratios) < TOLERANCE)


def render(letter, font, random):
    """One image, black on white: the letter with a random affine map, stroke width, blur and grey noise."""
    scale = 4                                                       # rendered at four times the size, for smooth edges
    canvas = Image.new('L', (SIDE * scale, SIDE * scale))
    opened = ImageFont.truetype(str(font), round(SIDE * scale * random.uniform(0.5, 0.72)))
    ImageDraw.Draw(canvas).text((SIDE * scale // 2, SIDE * scale // 2), letter, fill=255, font=opened, anchor='mm')
    stroke = int(random.integers(-1, 3))
    if stroke < 0:
        canvas = canvas.filter(ImageFilter.MinFilter(3))
    elif stroke > 0:
        canvas = canvas.filter(ImageFilter.MaxFilter(2 * stroke + 1))

    angle = np.deg2rad(random.uniform(-20, 20))
    shear, stretch = random.uniform(-0.3, 0.3, 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1 + stretch, shear], [0, 1 - stretch]])
    centre = np.full(2, SIDE * scale / 2)
    offset = centre - matrix @ (centre + random.uniform(-4, 4, 2) * scale)
    canvas = canvas.transform(canvas.size, Image.Transform.AFFINE, (*matrix[0], offset[0], *matrix[1], offset[1]),
                              Image.Resampling.BILINEAR)
    canvas = canvas.filter(ImageFilter.GaussianBlur(scale * random.uniform(0.2, 0.9))).reduce(scale)

    ink = np.asarray(canvas, np.float32) * random.uniform(0.5, 1)
    noise = random.normal(0, random.uniform(4, 24), ink.shape)
    return Image.fromarray((255 - ink + noise).clip(0, 255).astype(np.uint8))


def render_all(fonts, path):
    """Renders every image into a temporary folder and renames it to `path` when it is complete."""
    bar = tqdm(distinct(letters(fonts)).items(), desc='rendering the glyphs, once', unit='class', disable=None)
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f'.{path.name}.', dir=path.parent) as temporary:
                unfinished = Path(temporary) / path.name           # readable by others, unlike the temporary folder
                for letter, its_fonts in stopping.checked(bar):
                    render_class(letter, its_fonts, unfinished)
                unfinished.rename(path)
    except OSError:
        if not path.exists():                # another process may have written the same images
            raise


def render_class(letter, fonts, folder):
    """Renders the images of a letter into a folder of its own."""
    name = unicodedata.name(letter).title().replace(' Letter', '').replace(' ', '_')
    (folder / name).mkdir(parents=True)
    random = np.random.default_rng(ord(letter))
    order = random.permutation(len(fonts))
    for i in range(PER_CLASS):
        render(letter, fonts[order[i % len(order)]], random).save(folder / name / f'{i:02d}.png')
