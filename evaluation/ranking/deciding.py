"""
Exact ranks of the positives of queries whose nearest images float32 cannot order: for example, if the embeddings form
clusters that are small against the distance between them.
"""
import numpy as np
from tqdm import tqdm

from evaluation.ranking.arrays import chunks
from evaluation.ranking.nearest import distances

CHUNK = 1 << 22              # float64 scores that are held at a time: 32 MB


def by_differences(search, rows, depth):
    """
    The ranks of the positives of the queries `rows`, as ranking.positive_ranks yields them, by float64 distances; equal
    distances are in the order of the gallery.

    Inner products in float64 are the first to decide; where their rounding errors leave the rank of a positive open,
    the distances are summed from differences.
    """
    for part in tqdm(chunks(rows, len(search.gallery), CHUNK), 'decide', leave=False, disable=None):
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
    positives = positives[scores[positives] > -np.inf]      # images that are left out have a score of -inf
    if depth < len(scores):
        last = np.partition(scores, -int(depth))[-int(depth)]
        positives = positives[scores[positives] >= last - 2 * margin(last)]
    lowest = (scores[positives] - margin(scores[positives])).min(initial=np.inf)
    candidates = np.flatnonzero(scores >= lowest)
    order = candidates[scores[candidates].argsort()]
    near = np.diff(scores[order]) <= margin(scores[order[:-1]])
    close = np.append(near, False) | np.append(False, near)
    if close.any():
        images = order[close]
        order[close] = images[np.lexsort((-images, -distances(search, np.full(len(images), row), images)))]
    ranks = len(order) - np.flatnonzero(np.isin(order, positives))
    return np.sort(ranks)
