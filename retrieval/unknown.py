"""
Whether a query is unknown, that is, of no class in the gallery: its nearest image is less similar than a threshold. It
is calibrated by Evaluate_Network.py RUN open_set (open_set.py), or set by hand.
"""
import json
import math
from pathlib import Path

import numpy as np

from records import columns
from records.checkpoint import LAST
from retrieval.identification import row_at
from utilities.errors import UserError

ERRORS = ('threshold', 'fpir', 'fnir')
KEYS = ('gallery_size', *ERRORS, *(end for name in ERRORS for end in columns.interval(name)))       # keys of a row


def containing_folder(place):
    """The folder of a run folder or checkpoint file."""
    return Path(place) if Path(place).is_dir() else Path(place).parent


def thresholds_file(place):
    """Where the thresholds of a run folder, or of one of its checkpoint files, are written."""
    stem = '' if Path(place).is_dir() or Path(place).name == LAST else f'{Path(place).stem}_'
    return containing_folder(place) / f'{stem}open_set.json'


def calibrated_thresholds(source, network_id):
    """
    The thresholds that were calibrated for the network of the run folder or checkpoint `source`: a list of rows, each
    a dict of KEYS, and None; or None, and the reason why there are none, a sentence, or None if none were asked for.
    Raises UserError if their file is damaged.
    """
    file = thresholds_file(source)
    try:
        content = json.loads(file.read_text(encoding='utf-8'))
        rows = [{name: float(row[name]) for name in KEYS} for row in content['thresholds']]
        known = content['network_id']
        reason = content['reason']
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f'{file}: not readable ({error!r}); calibrate again: python Evaluate_Network.py '
                        f'{source} open_set 0.5') from None
    if reason or not rows:
        return None, f'{file} has no threshold: {reason}'
    if known is None:
        return None, f'{file}: its thresholds are for {content["own_similarity"]}, and an index has distances'
    if known != network_id:
        return None, (f'{file} was calibrated for other weights or settings of the network; calibrate again: python '
                      f'Evaluate_Network.py {source} open_set {content["share"]}')
    return rows, None


def by_hand(threshold):
    """The rows for a threshold of any gallery size. Raises UserError for one that no similarity can reach."""
    if threshold > 1:
        raise UserError(f'--threshold {threshold:g}: a similarity is at most 1; the distance {threshold:g} is the '
                        f'similarity 1 - d^2 / 2 = {similarity(threshold):g}')
    return [{'gallery_size': None, 'threshold': threshold}]


def threshold_row(rows, n_images):
    """The row for a gallery of `n_images`."""
    return rows[0] if rows[0]['gallery_size'] is None else row_at(rows, n_images)


def described(rows, n_images):
    """A phrase about the threshold for `n_images`."""
    row = threshold_row(rows, n_images)
    phrase = f'unknown below a similarity of {row["threshold"]:.4f}'
    if row['gallery_size'] is None:
        return f'{phrase}, set by hand'
    errors = (f'{name.upper()} {row[name]:.3f} [{row[low]:.3f}, {row[high]:.3f}]'
              for name in ERRORS[1:] for low, high in [columns.interval(name)])
    phrase += f' (for {row["gallery_size"]:,.0f} images; expected: {", ".join(errors)})'
    factor = math.exp(abs(math.log(row['gallery_size'] / max(1, n_images))))
    return phrase + (', which is calibrated for another number of images' if factor > 2 else '')


def similarity(distance):
    """1 − d² / 2 for a Euclidean distance d, an array or a number; the cosine for embeddings of norm 1."""
    return 1 - np.square(np.asarray(distance, np.float64)) / 2


def answer(rows, distance, n_images):
    """
    What the distance of a query's nearest image, of `n_images`, says: {'unknown': bool, 'similarity': float,
    'threshold': float}; {} without thresholds.
    """
    if not rows:
        return {}
    found = float(similarity(distance))
    threshold = threshold_row(rows, n_images)['threshold']
    return {'unknown': not found >= threshold, 'similarity': found, 'threshold': threshold}


def sentences(said):
    """An answer() as a list of one line of text, or of none."""
    if 'unknown' not in said:
        return []
    word, side = ('unknown', 'below') if said['unknown'] else ('known', 'at least')
    return [f'  {word}: the nearest similarity {said["similarity"]:.4f} is {side} the threshold '
            f'{said["threshold"]:.4f}']
