"""An index folder: the embeddings and paths of photos, and the search in them."""


class Index:
    """
    An index folder, open for queries.

    folder:     its path.
    paths:      list of N absolute paths.
    embeddings: [N, D] float32 array.
    run:        the run folder or checkpoint whose network made the embeddings; network_id: Network.id of it.

    Raises UserError where `folder` is no index, or is damaged.
    """

    def __init__(self, folder, device='cpu'):
        raise NotImplementedError

    def load_network(self, run=None, device='auto'):
        """
        The (network, transform) that made the index, as retrieval.load gives them. run: where the run folder is now, if
        it was moved. Raises UserError where it has other weights or settings than those that made the index.
        """
        raise NotImplementedError

    def nearest(self, embeddings, k=10):
        """
        The k nearest images of each query, the nearest first, ties in the order of the rows.

        embeddings: [Q, D] float32 array or tensor.

        Returns rows [Q, k] int64, indices into `paths` and `embeddings`, and their Euclidean distances [Q, k] float32;
        with k the number of images where that is less.
        """
        raise NotImplementedError

    def query(self, embeddings, k=10):
        """As nearest(), with a list of k paths for each query in place of the rows."""
        rows, distances = self.nearest(embeddings, k)
        return [[self.paths[row] for row in found] for found in rows], distances
