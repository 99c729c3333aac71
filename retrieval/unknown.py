"""
Whether a query is unknown, that is, of no class in the gallery: its nearest image is less similar than a threshold. It
is calibrated by Evaluate_Network.py RUN open_set (open_set.py), or set by hand.
"""
import json
from pathlib import Path

import numpy as np

from records import columns
from records.checkpoint import LAST
from utilities.errors import UserError

ERRORS = ('threshold', 'fpir', 'fnir')
KEYS = ('gallery_size', *ERRORS, *(end for name in ERRORS for end in columns.interval(name)))


def containing_folder(place):
    """The folder of a run folder or checkpoint file."""
    return Path(place) if Path(place).is_dir() else Path(place).parent


def threshold_file(place):
    """Where the threshold of a run folder, or of one of its checkpoint files, is written."""
    stem = '' if Path(place).is_dir() or Path(place).name == LAST else f'{Path(place).stem}_'
    return containing_folder(place) / f'{stem}open_set.json'


def calibrated(source, network_id):
    """
    (threshold, reason) for the network of the run folder or checkpoint `source`: the calibrated threshold, a dict of
    KEYS, or None; and the sentence why there is none, or None if there is one or none was calibrated. Raises UserError
    if the file is damaged.
    """
    file = threshold_file(source)
    try:
        content = json.loads(file.read_text(encoding='utf-8'))
        known = content['network_id']
        reason = content['reason']
        threshold = None if reason else {name: float(content['threshold'][name]) for name in KEYS}
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f'{file}: not readable ({error!r}); calibrate again: python Evaluate_Network.py '
                        f'{source} open_set 0.5') from None
    if reason:
        return None, f'{file} has no threshold: {reason}'
    if known is None:
        return None, f'{file}: its threshold is for {content["own_similarity"]}, and an index has distances'
    if known != network_id:
        return None, (f'{file} was calibrated for other weights or settings of the network; calibrate again: python '
                      f'Evaluate_Network.py {source} open_set {content["share"]}')
    return threshold, None


def by_hand(threshold):
    """--threshold, for any gallery size; None for 'none'. Raises UserError for one that no similarity can reach."""
    if threshold == 'none':
        return None
    if threshold > 1:
        raise UserError(f'--threshold {threshold:g}: a similarity is at most 1; the distance {threshold:g} is the '
                        f'similarity 1 - d^2 / 2 = {similarity(threshold):g}')
    return {'gallery_size': None, 'threshold': threshold}


def described(calibration, n_images):
    """A phrase about the threshold of an index of `n_images`."""
    phrase = f'unknown below a similarity of {calibration["threshold"]:.4f}'
    size = calibration['gallery_size']
    if size is None:
        return f'{phrase}, set by hand'
    errors = (f'{name.upper()} {calibration[name]:.3f} [{calibration[low]:.3f}, {calibration[high]:.3f}]'
              for name in ERRORS[1:] for low, high in [columns.interval(name)])
    phrase += f' (for {size:,.0f} images; expected: {", ".join(errors)})'
    other = max(size, n_images) > 2 * min(size, n_images)
    return phrase + (', which is calibrated for another number of images' if other else '')


def similarity(distance):
    """1 − d² / 2 for a Euclidean distance d, an array or a number; the cosine for embeddings of norm 1."""
    return 1 - np.square(np.asarray(distance, np.float64)) / 2


def answer(calibration, distance):
    """
    What the distance of a query's nearest image says: {'unknown': bool, 'similarity': float, 'threshold': float};
    {} without a threshold.
    """
    if not calibration:
        return {}
    found = float(similarity(distance))
    threshold = calibration['threshold']
    return {'unknown': not found >= threshold, 'similarity': found, 'threshold': threshold}


def sentences(answered):
    """An answer() as a list of one line of text, or of none."""
    if 'unknown' not in answered:
        return []
    word, side = ('unknown', 'below') if answered['unknown'] else ('known', 'at least')
    return [f'  {word}: the nearest similarity {answered["similarity"]:.4f} is {side} the threshold '
            f'{answered["threshold"]:.4f}']
