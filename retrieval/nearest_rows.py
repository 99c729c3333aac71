"""The nearest rows of a matrix of any size: candidates by float32 products, and their order by float64 differences."""
import numpy as np
import torch

from utilities.optional import faiss_or_none

ROWS = 1 << 16               # rows of the gallery that torch compares at a time
MORE = 16                    # candidates beyond the k nearest, whose order float32 may have mistaken


def exact(gallery, queries, k, device='cpu'):
    """
    [Q, k] int64: the rows of the gallery [N, D] nearest to the queries [Q, D], float32 arrays; by faiss, or by torch on
    a GPU and where faiss is not installed. gallery may also be a tensor on `device`.
    """
    faiss = faiss_or_none()
    if faiss and torch.device(device).type == 'cpu' and isinstance(gallery, np.ndarray):
        return faiss.knn(queries, gallery, k)[1]
    origin = torch.as_tensor(gallery[:1]).to(device)       # near it, products of similar points lose fewer digits
    queries = torch.from_numpy(queries).to(device) - origin
    scores = []
    rows = []
    for start in range(0, len(gallery), ROWS):
        part = torch.as_tensor(gallery[start:start + ROWS]).to(device) - origin
        best = (queries @ part.T - (part * part).sum(dim=1) / 2).topk(min(k, len(part)), dim=1)
        scores.append(best.values)
        rows.append(best.indices + start)
    scores, rows = torch.cat(scores, dim=1), torch.cat(rows, dim=1)
    return rows.gather(1, scores.topk(min(k, len(gallery)), dim=1).indices).cpu().numpy()


def measured(gallery, queries, rows, k):
    """
    The k nearest of the candidate rows [Q, R] of the gallery (−1: none): rows [Q, k] and Euclidean distances [Q, k]
    float32, which are computed from differences in float64. Equal distances are ordered by row.
    """
    distances = np.stack([np.linalg.norm(gallery[some].astype(float) - query, axis=1)
                          for some, query in zip(rows, queries, strict=True)])
    distances[rows < 0] = np.inf
    order = np.lexsort((rows, distances))[:, :k]
    return np.take_along_axis(rows, order, 1), np.take_along_axis(distances, order, 1).astype(np.float32)
