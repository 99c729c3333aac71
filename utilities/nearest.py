"""The nearest rows of a matrix, by an exact search."""
import numpy as np
import torch

ROWS = 1 << 16               # rows of the gallery that torch compares at a time


def faiss_or_none():
    """faiss, if it is installed."""
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def exact(gallery, queries, k, device='cpu'):
    """
    [Q, k] int64: the rows of the gallery [N, D] nearest to the queries [Q, D], float32 arrays; by faiss, or by torch on
    a GPU and where faiss is not installed. gallery may also be a tensor on `device`, or codes whose rows are decoded by
    indexing (retrieval.codes.Int8), which torch searches.
    """
    faiss = faiss_or_none()
    if faiss and torch.device(device).type == 'cpu' and isinstance(gallery, np.ndarray):
        return faiss.knn(queries, gallery, k)[1]
    queries, found = torch.from_numpy(queries).to(device), None
    for start in range(0, len(gallery), ROWS):
        part = torch.as_tensor(gallery[start:start + ROWS]).to(device)
        scores = queries @ part.T - (part * part).sum(dim=1) / 2
        scores, rows = scores.topk(min(k, len(part)), dim=1)
        rows = rows + start
        if found is not None:
            scores, rows = torch.cat([found[0], scores], dim=1), torch.cat([found[1], rows], dim=1)
            scores, best = scores.topk(min(k, scores.shape[1]), dim=1)
            rows = rows.gather(1, best)
        found = scores, rows
    return found[1].cpu().numpy()
