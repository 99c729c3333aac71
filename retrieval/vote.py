"""
The class of a new photo: its k nearest images of an index vote for their classes, each with its similarity as weight
(Dudani, The Distance-Weighted k-Nearest-Neighbor Rule, IEEE SMC 1976, with other weights).
"""
import os

import numpy as np

from retrieval.unknown import similarity

SAME = 1e-4                  # difference of equal distances or shares; rounding depends on the batch of a photo


def class_of(path):
    """The class of an image of an index: the name of its folder."""
    return os.path.basename(os.path.dirname(path))


def vote(classes, distances):
    """
    Args:
        classes:   the classes of the k nearest images, the nearest first.
        distances: [k], their Euclidean distances d.

    Returns: {'class': the class with the largest share, the nearer one of equal shares, 'share': its share}; None for
    both where classes of equal shares are equally near. The weight of an image is 1 − d² / 2, the cosine of embeddings
    of norm 1, and 0 where that is negative; if no weight is positive, all are equal. Images at a distance of
    at most SAME are the photo itself: they alone vote, and 'in_index' is True.

    >>> vote(['cat', 'dog', 'dog'], [0.2, 1.0, 1.0])
    {'class': 'dog', 'share': 0.5050505050505051}
    """
    distances = np.asarray(distances)
    if not np.isfinite(distances).all():
        return {'class': None, 'share': None}
    itself = distances <= SAME
    weights = itself.astype(float) if itself.any() else np.maximum(similarity(distances), 0)
    weights = weights if weights.any() else np.ones(len(weights))
    shares = {}
    nearest = {}
    for name, weight, distance in zip(classes, weights, distances, strict=True):
        shares[name] = shares.get(name, 0) + float(weight / weights.sum())
        nearest.setdefault(name, distance)
    largest = max(shares.values())
    equal = [name for name, share in shares.items() if share > largest - SAME]
    least = min(nearest[name] for name in equal)
    winner, *rivals = [name for name in equal if nearest[name] <= least + SAME]
    found = {'class': None, 'share': None} if rivals else {'class': winner, 'share': shares[winner]}
    return found | ({'in_index': True} if itself.any() else {})


def sentences(answer):
    """An answer of Index.answers() as a list of one line of text about the class, or of none."""
    if 'class' not in answer or answer.get('unknown'):
        return []
    if answer['class'] is None:
        return ['  no class: images of several classes are equally near']
    if answer.get('in_index'):
        return [f'  class: {answer["class"]}: this photo is in the index']
    return [f'  class: {answer["class"]}, with {answer["share"]:.0%} of the votes of the nearest images']
