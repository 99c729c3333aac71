"""
Retrieve_Images.py suspects: images whose neighbours contradict their labels, near-duplicates, and outliers.

- label: the ratio of the mean distances to the nearest images of the image's own class and of all other classes, which
  is the nonconformity of Proedrou et al., Transductive confidence machines for pattern recognition, ECML 2002, Eq. 3.
- outlier: the distance to the nearest images, as in Ramaswamy et al., Efficient algorithms for mining outliers from
  large data sets, SIGMOD 2000.

Ratios and distances are judged by their modified z-score, with median and median absolute deviation in place of mean
and standard deviation, since the suspects themselves are among the images. Iglewicz and Hoaglin, How to detect and
handle outliers, 1993.
"""
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from evaluation.ranking.arrays import chunks
from evaluation.ranking.nearest import first_by_class
from evaluation.ranking.neighbours import Search
from utilities import stopping

KINDS = ('label', 'duplicate', 'outlier')
N_NEAREST = 10               # neighbours of an image within its class, and equally many outside of it
N_MEAN = 3                   # nearest of these neighbours, whose distances are averaged
N_VOTES = 5                  # nearest images of other classes that vote for the suggested label
LABEL_Z = 2.5                # the modified z-scores above which an image is suspect
OUTLIER_Z = 3.5
DUPLICATE = 0.6              # largest distance of near-duplicates, divided by the median distance to the nearest image
COPY = 0.3                   # within a class, where different photos of one thing are nearer than 0.6
SAME = 1000                  # highest score of a duplicate: the same image


@dataclass
class Suspect:
    """
    kind:      one of KINDS.
    image:     the index of the image.
    suggested: the label that its neighbours suggest; for a duplicate, the label of the other image, which may be the
               image's own; None for an outlier.
    score:     the higher, the more suspicious; comparable within a kind only.
    neighbour: the index of the nearest image with the suggested label; for a duplicate, of the other image; for an
               outlier, of the nearest image.
    """
    kind: str
    image: int
    suggested: int | None
    score: float
    neighbour: int


def nearest(embeddings, labels):
    """
    The N_NEAREST nearest images of each image in its own class, and in all others: twice, rows [N, k], −1 where there
    are fewer, and their Euclidean distances [N, k] float32, inf there.
    """
    search = Search(embeddings, labels)
    k = min(N_NEAREST, len(labels))
    rows = np.full((2, len(labels), k), -1)
    distances = np.full((2, len(labels), k), np.inf, np.float32)
    parts = chunks(np.arange(len(labels)), len(labels), 1 << 22)
    for part in stopping.checked(tqdm(parts, 'neighbours', leave=False, disable=None)):
        for number, found in enumerate(first_by_class(search, part, k)):
            rows[number, part], distances[number, part] = found
    return zip(rows, np.sqrt(distances, out=distances), strict=True)


def find(embeddings, labels):
    """
    The suspects of each kind, the most suspicious first; duplicates within a class follow the others.

    Args:
        embeddings: [N, D] float32 tensor.
        labels:     [N] int64 array, from 0.

    Returns: a list of Suspects, in the order of KINDS. Memory is 70 MB plus a part in proportion to N (D + 40).
    """
    if len(labels) < 2:
        return []
    own, others = nearest(embeddings, labels)
    order = np.argsort(np.concatenate([own[1], others[1]], axis=1), axis=1, kind='stable')[:, :N_NEAREST]
    rows, distances = (np.take_along_axis(np.concatenate(pair, axis=1), order, axis=1)
                       for pair in zip(own, others, strict=True))
    labels_of = np.where(others[0] < 0, -1, labels[others[0]])
    suspects = [*wrong_labels(own[1], *others, labels_of), *duplicates(own, others, labels),
                *outliers(rows, distances)]
    return sorted(suspects, key=lambda suspect: (KINDS.index(suspect.kind), suspect.suggested == labels[suspect.image],
                                                 -suspect.score, suspect.image))


def mean(distances):
    """[N] the mean of the N_MEAN smallest finite distances of each row; NaN where there is none."""
    few = distances[:, :N_MEAN]
    exist = np.isfinite(few)
    return np.divide(np.where(exist, few, 0).sum(axis=1), exist.sum(axis=1), out=np.full(len(few), np.nan, np.float64),
                     where=exist.any(axis=1))


def z_scores(values):
    """Modified z-scores of the finite values of [N]; −inf for the others, and for all if half of them are equal."""
    finite = np.isfinite(values)
    if not finite.any():
        return np.full(len(values), -np.inf)
    centred = values - np.median(values[finite])
    deviation = 1.4826 * np.median(np.abs(centred[finite]))              # the standard deviation, if values are normal
    return np.divide(centred, deviation, out=np.full(len(values), -np.inf), where=finite & (deviation > 0))


def ratio(one, other):
    """one / other, elementwise, with distances of 0 (equal images) replaced by a millionth of the median distance."""
    least = 1e-6 * np.nanmedian(np.concatenate([one, other]))
    return np.maximum(one, least) / np.maximum(other, least) if least > 0 else np.full(len(one), np.nan)


def wrong_labels(own, rows, distances, labels_of):
    ratios = ratio(mean(own), mean(distances))
    z = z_scores(np.log(ratios))
    weights = 1 / np.maximum(distances[:, :N_VOTES], 1e-6) ** 2
    for image in np.flatnonzero((z > LABEL_Z) & (ratios > 1)):
        labels, votes = np.unique(labels_of[image, :N_VOTES], return_inverse=True)
        suggested = labels[np.bincount(votes, weights[image]).argmax()]
        neighbour = rows[image, np.flatnonzero(labels_of[image] == suggested)[0]]
        yield Suspect('label', int(image), int(suggested), float(ratios[image]), int(neighbour))


def duplicates(own, others, labels):
    """Pairs; the score is the median distance to the nearest image that is not the same, divided by the pair's."""
    distances = np.concatenate([own[1], others[1]], axis=1)
    least = np.median(distances[np.isfinite(distances)]) / SAME
    typical = np.median(np.where(distances > least, distances, np.inf).min(axis=1))
    if np.isinf(typical):                                                # all embeddings are equal
        return
    seen = set()
    for rows, near, limit in (*others, DUPLICATE), (*own, COPY):
        for image, column in np.argwhere(near < limit * typical):
            other = int(rows[image, column])
            if (other, int(image)) not in seen:
                seen.add((int(image), other))
                score = 1 / max(near[image, column] / typical, 1 / SAME)
                yield Suspect('duplicate', int(image), int(labels[other]), float(score), other)


def outliers(rows, distances):
    far = mean(distances)
    typical = np.median(far)
    z = z_scores(np.log(np.maximum(far, 1e-6 * typical))) if typical > 0 else np.zeros(len(far))
    for image in np.flatnonzero(z > OUTLIER_Z):
        yield Suspect('outlier', int(image), None, float(far[image] / typical), int(rows[image, 0]))
