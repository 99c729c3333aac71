"""The nearest gallery images of the queries of a Search: float32 finds the candidates, float64 decides their order."""
import numpy as np
import torch

from evaluation.ranking import precision
from evaluation.ranking.arrays import chunks, pick, take_rows

BLOCK = 64                   # gallery images of which only the highest score is compared at first
PAIRS = 1 << 14              # pairs whose distances are computed together: 16 MB with 128 dimensions


def first(search, rows, scores, k, images=None):
    """
    The k images that come first for the queries `rows` by their float32 `scores` [q, n], which are those of the whole
    gallery, or of its `images`, an index array: [n], or [q, n] if each query has its own. A score of −inf leaves an
    image out.

    Returns their indices in the gallery [q, k], −1 where there are fewer, and their distances() [q, k] float64, inf
    there. Equal distances are ordered by index, and float64 decides between all scores that float32 cannot order.
    """
    found = np.full((len(rows), k), -1)
    distance = np.full((len(rows), k), np.inf)
    n = min(k, scores.shape[1])
    if not n or not len(rows):
        return found, distance
    least = at_place(scores, n) - search.blur(rows).to(scores.device)
    chosen = scores >= least.clamp(min=torch.finfo(scores.dtype).min)[:, None]       # −inf is never chosen
    if scores.device.type == 'cpu':
        row, column, _ = pick(scores.numpy(), chosen.numpy())
    else:
        row, column = chosen.nonzero().cpu().numpy().T
    if images is not None:
        column = images[column] if images.ndim == 1 else images[row, column]
    far = distances(search, rows[row], column)
    order = np.lexsort((column, far, row))
    row, column, far = row[order], column[order], far[order]
    place = np.arange(len(row)) - np.searchsorted(row, row)
    some = place < k
    found[row[some], place[some]] = column[some]
    distance[row[some], place[some]] = far[some]
    return found, distance


def first_by_class(search, rows, k):
    """Two results of first(): of the k images of each query's own class, and of the k images of other classes."""
    scores = search.scores(rows)
    own, exists = search.positives(rows)
    places, exists = (torch.as_tensor(array, device=scores.device) for array in (own, exists))
    row, slot = exists.nonzero(as_tuple=True)
    of_own = scores.gather(1, places).masked_fill_(~exists, -torch.inf)
    scores[row, places[row, slot]] = -torch.inf
    return first(search, rows, of_own, k, own), first(search, rows, scores, k)


def nearest(search, queries, k):
    """
    The k nearest gallery images of some queries, or all of them if there are fewer, ties in index order: [q, k];
    indices among all N images.
    """
    rows = np.searchsorted(search.query_index, queries)
    k = min(k, len(search.gallery) - int((search.own[rows] >= 0).any()))
    return search.gallery_index[first(search, rows, search.scores(rows), k)[0]]


def at_place(scores, k):
    """[q] the k-th highest score of each row of [q, n]; on the CPU, it may be a lower one."""
    if scores.device.type != 'cpu':
        return scores.topk(k, dim=1).values[:, -1]
    scores = scores.numpy()
    n = scores.shape[1]
    # k groups of BLOCK images have one that reaches the bound, so that at least k images reach it
    best = scores[:, :n - n % BLOCK].reshape(len(scores), BLOCK, -1).max(axis=1, initial=-np.inf)
    bound = np.partition(best, -k, axis=1)[:, -k] if k <= best.shape[1] else np.full(len(scores), -np.inf)
    if not np.isfinite(bound).all():
        bound = np.partition(scores, -k, axis=1)[:, -k]
    return torch.from_numpy(bound)


def distances(search, rows, images):
    """
    [n] float64: the squared distances of queries and gallery images, two index arrays [n], from differences; in a
    ranking of its own, minus the scores. Gallery images with identical embeddings have equal distances.
    """
    copies = None
    if len(search.copies):
        pairs, copies = np.unique(rows * len(search.gallery) + search.originals[images], return_inverse=True)
        rows, images = pairs // len(search.gallery), pairs % len(search.gallery)
    found = [np.empty(0)]
    for some in chunks(np.arange(len(rows)), 1, PAIRS):
        queries, gallery = (precision.wide(take_rows(points, index[some]))
                            for points, index in ((search.queries, rows), (search.gallery, images)))
        pairs = (queries - gallery).square_().sum(dim=1) if search.euclidean else -(queries * gallery).sum(dim=1)
        found.append(pairs.cpu().numpy())
    found = np.concatenate(found)
    return found if copies is None else found[copies]
