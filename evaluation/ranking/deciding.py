"""
Exact ranks of the positives of queries whose nearest images float32 cannot order: for example, if the embeddings form
clusters that are small against the distance between them.
"""
import numpy as np
from tqdm import tqdm

CHUNK = 1 << 22              # float64 scores that are held at a time: 32 MB


def by_differences(search, rows, depth):
    """
    The ranks of the positives of the queries `rows`, as ranking.positive_ranks yields them, by float64 distances; equal
    distances are in the order of the gallery.

    Inner products in float64 are the first to decide; where their rounding errors leave the rank of a positive open,
    the distances are summed from differences.
    """
    depth, size = np.broadcast_to(depth, len(search.own)), max(1, CHUNK // len(search.gallery))
    for start in tqdm(range(0, len(rows), size), 'decide', leave=False, disable=None):
        part = rows[start:start + size]
        scores = search.precise_scores(part).cpu().numpy()
        half_norms = search.query_half_norms.cpu().numpy()[part]
        ranks = np.full((len(part), search.n_positives[part].max()), np.inf)
        for number, row in enumerate(part):
            found = exact_ranks(search, row, scores[number], float(half_norms[number]), depth[row])
            ranks[number, :len(found)] = found
        yield part, ranks


def exact_ranks(search, row, scores, half_norm, depth):
    """Ranks of a query's positives up to `depth`, ascending, from its float64 `scores` [G]."""
    def margin(score):
        return 8 * (search.gallery.shape[1] + 4) ** 0.5 * np.finfo(float).eps * (half_norm - score)

    positives = np.flatnonzero(search.gallery_labels == search.query_labels[row])
    positives = positives[scores[positives] > -np.inf]      # without the images that are left out
    if depth < len(scores):
        last = np.partition(scores, -int(depth))[-int(depth)]
        positives = positives[scores[positives] >= last - 2 * margin(last)]
    own = scores[positives]
    lowest, highest = own - margin(own), own + margin(own)
    candidates = np.flatnonzero(scores >= lowest.min(initial=np.inf))
    order = candidates[scores[candidates].argsort()]
    first, end = scores[order].searchsorted(lowest), scores[order].searchsorted(highest, 'right')
    several = end - first > 1
    # margins that hold other images than their positive: where they begin and end
    opened, closed = (np.bincount(bound[several], minlength=len(order) + 1) for bound in (first, end))
    close = (opened - closed).cumsum()[:-1] > 0
    if close.any():
        images = order[close]
        order[close] = images[np.lexsort((-images, -search.squared_distances(row, images)))]
    ranks = len(order) - np.flatnonzero(np.isin(order, positives))
    return np.sort(ranks)
