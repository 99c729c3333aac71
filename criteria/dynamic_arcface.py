# SPDX-License-Identifier: MIT
"""
Sub-centre ArcFace with dynamic margins, which are larger for classes with fewer images. Ha et al., Google Landmark
Recognition 2020 Competition Third Place Solution, 2020, https://arxiv.org/abs/2010.05350.

Differs: Where all classes have the same number of images, all have the margin `margin_high`; the authors' formula is
0 / 0. The authors' file has scale 30 as its default and 80 in their runs. Where θ + m exceeds π, cos θ − m sin m
replaces cos(θ + m). A pull request to pytorch-metric-learning (452) has the margin 0.5 n^(−1/4) + 0.05 instead.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'n_centers': {'default': 3, 'at_least': 1, 'help': 'number of centres per class'},
    'margin_low': {'at_least': 0},
    'margin_high': {'at_least': 0},
    'power': {},
    'feature_scale': {'above': 0},
    'lr': {'default': 0.0005, 'at_least': 0, 'help': 'learning rate of the centres'},
}


def dynamic_margins(class_counts, low=0.05, high=0.5, power=0.25):
    """The margin of each class [C]: linear in n^−power, `low` for the largest class and `high` for the smallest."""
    counts = class_counts.where(class_counts > 0, class_counts.max())      # a class without images is not the smallest
    sizes = counts ** -power
    smallness = (sizes - sizes.min()) / (sizes.max() - sizes.min())
    return low + (high - low) * smallness.nan_to_num(1)                    # equal sizes: 0 / 0


def dynamic_arcface_loss(batch, labels, centers, class_counts, margin_low=0.05, margin_high=0.5, power=0.25,
                         feature_scale=80.0, reduction='mean'):
    """
    Args:
        batch:         [B, D] embeddings, normalised here.
        labels:        [B] int64 below C.
        centers:       [C, K, D], K per class, normalised here; only the nearest centre of a class counts.
        class_counts:  [C], the number of training images n of each class.
        margin_low:    margin of the largest class, in radians.
        margin_high:   margin of the smallest class, in radians, and of all classes if they have equal sizes.
        power:         p; margins are linear in n^−p.
        feature_scale: s, factor of the cosines.
        reduction:     mean, or none for the value of each sample.

    Returns: scalar, the mean cross entropy; the margin m of the sample's class is added to the angle θ between the
    sample and its class. Where θ + m exceeds π, cos θ − m sin m replaces cos(θ + m).

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8]])
    >>> centers = torch.tensor([[[1., 0.], [-1., 0.]], [[0., -1.], [0., 1.]]])
    >>> dynamic_arcface_loss(batch, torch.tensor([0, 1]), centers, torch.tensor([5, 5]), feature_scale=2.0)
    tensor(0.5277)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        margins = dynamic_margins(class_counts.to(batch.dtype), margin_low, margin_high, power)[labels][:, None]
        n_classes, n_centers = centers.shape[:2]
        cosines = F.normalize(batch, dim=1) @ F.normalize(centers.to(batch.dtype), dim=2).flatten(0, 1).T
        cosines = cosines.view(len(batch), n_classes, n_centers).max(dim=2).values
        own = cosines.gather(1, labels[:, None])
        sine = (1 - own.square()).clamp(min=torch.finfo(batch.dtype).eps).sqrt()
        within = own * margins.cos() - sine * margins.sin()
        beyond = own - margins * margins.sin()
        own = torch.where(own >= -margins.cos(), within, beyond)
        logits = feature_scale * cosines.scatter(1, labels[:, None], own)
        return F.cross_entropy(logits, labels, reduction=reduction)


class Criterion(torch.nn.Module):
    """
    opt: loss_dynamic_arcface_n_centers, _margin_low, _margin_high, _power, _feature_scale, _lr, n_classes, embed_dim,
    class_counts.
    """

    def __init__(self, opt):
        super().__init__()
        self.arguments = [opt.loss_dynamic_arcface_margin_low, opt.loss_dynamic_arcface_margin_high,
                          opt.loss_dynamic_arcface_power, opt.loss_dynamic_arcface_feature_scale]
        self.lr = opt.loss_dynamic_arcface_lr
        limit = opt.embed_dim ** -0.5
        shape = opt.n_classes, opt.loss_dynamic_arcface_n_centers, opt.embed_dim
        self.centers = torch.nn.Parameter(torch.empty(shape).uniform_(-limit, limit))
        self.register_buffer('class_counts', torch.as_tensor(opt.class_counts))

    def forward(self, batch, labels, reduction='mean', **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return dynamic_arcface_loss(batch, labels, self.centers, self.class_counts, *self.arguments, reduction)
