# SPDX-License-Identifier: MIT
"""
A learned Mahalanobis distance under any loss of embeddings: the loss, its miner and evaluation get the embeddings after
a linear map L, whose Euclidean distances are the Mahalanobis distances with the matrix L^T L. Weinberger & Saul,
Distance Metric Learning for Large Margin Nearest Neighbor Classification, JMLR 2009, Eq. 2.
"""
import torch
import torch.nn.functional as F

REQUIRES_OPTIM = True
BESIDE_EMBEDDINGS = ('batch_features', 'avg_batch_features', 'f_embed', 'feature_maps', 'images', 'teacher_batch')
FLAGS = {
    'mahalanobis': {'default': False,
                    'help': 'learn a linear map of the embeddings, under the loss, its miner and evaluation'},
    'mahalanobis_lr': {'default': -1.0,
                       'help': '--mahalanobis: learning rate of the map; a negative value means --lr'},
}


def mapped(batch, matrix):
    """
    The embeddings batch [B, D] after the linear map matrix [D, D]: [B, D].

    >>> mapped(torch.tensor([[1., 2.]]), torch.tensor([[3., 0.], [0., 1.]]))
    tensor([[3., 2.]])
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        return F.linear(batch, matrix.to(batch.dtype))


class Mahalanobis(torch.nn.Module):
    """
    A loss of the mapped embeddings. The map begins as the identity.

    Args:
        criterion: the loss, a module called as criterion(batch=, labels=, ...).
        dim:       D, dimension of the embeddings.
        lr:        learning rate of the map.
    """

    def __init__(self, criterion, dim, lr):
        super().__init__()
        self.criterion = criterion
        self.lr = lr
        self.matrix = torch.nn.Parameter(torch.eye(dim))

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        return self.criterion(batch=mapped(batch, self.matrix), labels=labels, **kwargs)

    @torch.no_grad()
    def ranking_embeddings(self, embeddings):
        """
        Embeddings [N, D] -> (queries, gallery), two float64 [N, D + 1], whose inner products fall as the distance
        grows: <x, y> - ||y||^2 / 2. A loss with a distance of its own ranks the mapped embeddings by it.
        """
        points = mapped(embeddings.double(), self.matrix)
        if hasattr(self.criterion, 'ranking_embeddings'):
            return self.criterion.ranking_embeddings(points)
        halves = points.square().sum(dim=1, keepdim=True) / 2
        return torch.cat([points, torch.ones_like(halves)], dim=1), torch.cat([points, -halves], dim=1)


def problem(opt):
    if opt.cascade:
        return '--mahalanobis does not work with --cascade: its embedding consists of several'
    if opt.matryoshka:
        return '--mahalanobis does not work with --matryoshka: a prefix of the mapped embedding is no map of a prefix'
    if opt.daml:
        return '--mahalanobis does not work with --daml: synthetic negatives are embedded without the map'
    return None


def around(opt, build, miner):
    criterion = build(opt, miner)
    beyond = criterion.takes & {*BESIDE_EMBEDDINGS}
    if beyond:
        raise ValueError(f'--mahalanobis does not work with --loss {opt.loss}, which takes {", ".join(sorted(beyond))} '
                         'beside the embeddings')
    lr = opt.lr if opt.mahalanobis_lr < 0 else opt.mahalanobis_lr
    return Mahalanobis(criterion, opt.embed_dim, lr)
