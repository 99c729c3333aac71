# SPDX-License-Identifier: MIT
"""
Centre loss: half the squared distance of each sample to the centre of its class. Wen et al., A Discriminative Feature
Learning Approach for Deep Face Recognition, ECCV 2016, Eq. 2 and 4. It has no term that keeps classes apart: add it to
another loss, as in `--loss softmax+center --loss_weights 1 0.003`.

Differs: The paper sums over the samples of the batch; here it is their mean, as in the authors' code, so that its
weight λ in a sum is the paper's where the other loss is a mean, too. Other code trains the centres by the optimizer,
whose steps depend on λ, or divides their gradient by λ; here they move by the paper's rule, whatever the weight is.
"""
import torch

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {'alpha': {'at_least': 0, 'at_most': 1}}


def center_loss(batch, labels, centers):
    """
    Args:
        batch:   [B, D] embeddings, not normalised.
        labels:  [B] int64 below C.
        centers: [C, D], one per class, without gradient.

    Returns: scalar, the mean of ‖x_i − c_yi‖² / 2.

    >>> batch, centers = torch.tensor([[1., 0.], [0., 1.]]), torch.tensor([[1., 2.], [0., 0.]])
    >>> center_loss(batch, torch.tensor([0, 1]), centers)
    tensor(1.2500)
    """
    if labels.shape != batch.shape[:1]:
        raise ValueError(f'expected labels [B] for embeddings [B, D], not {[*labels.shape]} for {[*batch.shape]}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        return (batch - centers.to(batch.dtype)[labels]).square().sum(dim=1).mean() / 2


@torch.no_grad()
def center_update(batch, labels, centers, alpha=0.5):
    """
    Args:
        batch, labels, centers: as in center_loss.
        alpha: α, rate at which the centres move towards the samples of their classes; 0: they stay.

    Returns: [C, D], the centres c_j − α Σ (c_j − x_i) / (1 + n_j), summed over the n_j samples of class j.

    >>> batch, centers = torch.tensor([[1., 0.], [3., 0.]]), torch.tensor([[0., 0.], [5., 5.]])
    >>> center_update(batch, torch.tensor([0, 0]), centers)
    tensor([[0.6667, 0.0000],
            [5.0000, 5.0000]])
    """
    apart = centers[labels] - batch.to(centers.dtype)
    sums = torch.zeros_like(centers).index_add_(0, labels, apart)
    counts = centers.new_zeros(len(centers)).index_add_(0, labels, torch.ones_like(apart[:, 0]))
    return centers - alpha * sums / (1 + counts[:, None])


class Criterion(torch.nn.Module):
    """opt: loss_center_alpha, n_classes, embed_dim. In evaluation mode, the centres stay where they are."""

    def __init__(self, opt):
        super().__init__()
        self.alpha = opt.loss_center_alpha
        limit = (3 / opt.embed_dim) ** 0.5                       # xavier, as in the authors' code: norms of about 1
        self.register_buffer('centers', torch.empty(opt.n_classes, opt.embed_dim).uniform_(-limit, limit))

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        loss = center_loss(batch, labels, self.centers)
        if self.training:
            self.centers.copy_(center_update(batch, labels, self.centers, self.alpha))
        return loss
