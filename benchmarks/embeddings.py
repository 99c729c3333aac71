"""Random embeddings clustered by class, as the benchmarks of the evaluation rank them."""
import numpy as np
import torch

# name: images, classes, images of the largest class, queries (0: every image is a query, and all others its gallery)
SIZES = {'CUB': (5924, 100, 60, 0), 'Cars': (8131, 98, 97, 0), 'In-Shop': (26830, 3985, 30, 14218),
         'SOP': (60502, 11316, 12, 0)}
RECALL = 0.53                                              # approximate recall at 1 of the embeddings


def embeddings(n, n_classes, largest, n_queries, dim):
    """
    Args:
        n:         number of images, in `n_classes` classes of 2 to `largest` images.
        n_queries: number of queries, whose gallery are the other images; 0: each image is a query against all others.

    Returns: points [n, dim], float32 of norm 1, around random class centres at distances that give RECALL; labels [n];
    and the queries, [n] bool, or None if all images are.
    """
    random = np.random.default_rng(0)
    sizes = np.full(n_classes, 2)
    while sizes.sum() < n:
        free = random.permutation(np.flatnonzero(sizes < largest))[:n - sizes.sum()]
        sizes[free] += random.random(len(free)) < 0.5
    labels = random.permutation(np.repeat(np.arange(n_classes), sizes))
    centres, noise = (random.normal(size=(size, dim)).astype(np.float32) for size in (n_classes, n))
    is_query = np.arange(n) < n_queries if n_queries else None
    low, high = 0.1, 40.0                                  # limits of the spread around a centre; recall falls with it
    for _ in range(12):
        spread = (low * high) ** 0.5
        points = np.float32(spread) * noise
        points += centres[labels]
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        low, high = (spread, high) if recall_at_1(points, labels, is_query) > RECALL else (low, spread)
    return torch.from_numpy(points), labels, is_query


def recall_at_1(points, labels, is_query):
    """Recall at 1 of up to 4,000 queries, or of fewer with a gallery of more than 25,000 images."""
    queries = np.arange(len(points)) if is_query is None else np.flatnonzero(is_query)
    gallery = queries if is_query is None else np.flatnonzero(~is_query)
    n = min(4000, len(queries), 10 ** 8 // len(gallery))
    queries = queries[np.linspace(0, len(queries) - 1, n).astype(int)]
    scores = points[queries] @ points[gallery].T
    scores[queries[:, None] == gallery] = -np.inf
    return np.mean(labels[gallery[scores.argmax(axis=1)]] == labels[queries])
