"""
The class of a new photo: its k nearest images of an index vote for their classes, each with its similarity as weight
(Dudani, The Distance-Weighted k-Nearest-Neighbor Rule, IEEE SMC 1976, with other weights).
"""
import os

import numpy as np

from retrieval.unknown import similarity


def class_of(path):
    """The class of an image of an index: the name of its folder."""
    return os.path.basename(os.path.dirname(path))


def vote(classes, distances):
    """
    Args:
        classes:   the classes of the k nearest images, the nearest first.
        distances: [k], their Euclidean distances d.

    Returns: {'class': the class with the largest share, the nearer one of equal shares, 'share': its share}. The weight
    of an image is 1 − d² / 2, the cosine of embeddings of norm 1, and 0 where that is negative; if no weight is
    positive, all are equal.

    >>> vote(['cat', 'dog', 'dog'], [0.2, 1.0, 1.0])
    {'class': 'dog', 'share': 0.5050505050505051}
    """
    weights = np.maximum(similarity(distances), 0)
    weights = weights if weights.any() else np.ones(len(weights))
    shares = {}
    for name, weight in zip(classes, weights, strict=True):
        shares[name] = shares.get(name, 0) + float(weight / weights.sum())
    winner = max(shares, key=shares.get)
    return {'class': winner, 'share': shares[winner]}


def sentences(said):
    """An answer of Index.answers() as a list of one line of text about the class, or of none."""
    if 'class' not in said or said.get('unknown'):
        return []
    return [f'  class: {said["class"]}, with {said["share"]:.0%} of the votes of the nearest images']
