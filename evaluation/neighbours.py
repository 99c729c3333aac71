"""Who is near whom: exact, in chunks of queries, a query itself left out by index, ties in the order of the index."""
import numpy as np
import torch

CHUNK = 1 << 24              # scores that are held at a time: 64 MB


class Search:
    """
    Queries and the gallery they are searched for in.

    embeddings: [N, D] float32, on the device to compute on.
    labels:     [N] int64 array.
    is_query:   None: each image is searched for among all others; else [N] bool: queries, the others are the gallery.
    """

    def __init__(self, embeddings, labels, is_query=None):
        self.among_others = is_query is None
        queries, gallery = (slice(None), slice(None)) if is_query is None else (is_query, ~is_query)
        self.query_index, self.gallery_index = np.arange(len(labels))[queries], np.arange(len(labels))[gallery]
        self.queries, self.gallery = embeddings[queries], embeddings[gallery]
        self.query_labels, self.gallery_labels = labels[queries], labels[gallery]

    def chunks(self):
        """
        Yields (slice of the queries, scores [q, G] float32): the larger, the nearer; a query's own score is −inf.

        q·g − ½‖g‖² orders a row as −‖q − g‖ does: half of −‖q − g‖², plus what depends on the query alone.
        """
        half_norms = (self.gallery * self.gallery).sum(dim=1) / 2
        size = max(1, CHUNK // len(self.gallery))
        for start in range(0, len(self.queries), size):
            part = slice(start, min(start + size, len(self.queries)))
            scores = torch.addmm(-half_norms, self.queries[part], self.gallery.T)
            if self.among_others:
                scores[torch.arange(len(scores)), torch.arange(part.start, part.stop)] = -torch.inf
            yield part, scores

    def positive_ranks(self):
        """
        Yields, for the queries chunk by chunk, the ranks of their positives, [q, R] float64, ascending and padded with
        inf, and the numbers of their positives, [q]. The nearest image has rank 1.
        """
        n_classes = int(max(self.query_labels.max(), self.gallery_labels.max())) + 1
        members = np.split(np.argsort(self.gallery_labels, kind='stable'),
                           np.cumsum(np.bincount(self.gallery_labels, minlength=n_classes))[:-1])
        for part, scores in self.chunks():
            positives = [members[label] for label in self.query_labels[part]]
            if self.among_others:
                positives = [found[found != query]
                             for found, query in zip(positives, range(part.start, part.stop), strict=True)]
            n_positives = np.array([len(found) for found in positives])
            padded = np.zeros((len(positives), max(1, n_positives.max())), np.int64)
            is_positive = np.arange(padded.shape[1]) < n_positives[:, None]
            padded[is_positive] = np.concatenate(positives)
            ranks = ranks_numpy if scores.device.type == 'cpu' else ranks_torch
            yield np.sort(np.where(is_positive, ranks(scores, padded, is_positive), np.inf), axis=1), n_positives

    def nearest(self, queries, k):
        """The k nearest gallery images of some queries: [q, k]; both are indices among all N images."""
        place = np.full(len(self.query_index) + len(self.gallery_index), -1)
        place[self.query_index] = np.arange(len(self.query_index))
        scores = self.queries[place[queries]] @ self.gallery.T - (self.gallery * self.gallery).sum(dim=1) / 2
        if self.among_others:
            scores[np.arange(len(queries)), queries] = -torch.inf
        order = scores.sort(dim=1, descending=True, stable=True).indices.cpu().numpy()
        return self.gallery_index[order[:, :min(k, len(self.gallery) - self.among_others)]]


def ranks_numpy(scores, positives, is_positive):
    """
    The rank of each positive: 1 + the number of images that score more, or as much and stand before it.

    scores: [q, G] float32; positives: [q, R] columns of it; is_positive: [q, R], where there is one. Returns [q, R].
    """
    scores = scores.numpy()
    ranks = np.ones(positives.shape, np.int64)
    for row, slot in np.argwhere(is_positive):
        column, line = positives[row, slot], scores[row]
        ranks[row, slot] += np.count_nonzero(line[:column] >= line[column])
        ranks[row, slot] += np.count_nonzero(line[column:] > line[column])
    return ranks


def ranks_torch(scores, positives, is_positive):
    """As ranks_numpy, one slot of all queries at a time, for GPUs."""
    columns = torch.arange(scores.shape[1], device=scores.device)
    ranks = []
    for slot in torch.as_tensor(positives, device=scores.device).T[:, :, None]:
        own = scores.gather(1, slot)
        ranks.append(((scores > own) | ((scores == own) & (columns < slot))).sum(dim=1) + 1)
    return torch.stack(ranks, dim=1).cpu().numpy()
