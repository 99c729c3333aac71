# SPDX-License-Identifier: MIT
"""
S2SD: similarity-based self-distillation from larger embeddings of the same features, for any loss. Roth et al.,
S2SD: Simultaneous Similarity-based Self-Distillation for Deep Metric Learning, ICML 2021,
https://arxiv.org/abs/2009.08348.

Differs: As in the authors' code, the distillation is KL(larger ‖ embeddings), the divergence between the softmaxes of
the larger embeddings' similarities and of the embeddings' own, averaged over the anchors and multiplied by the
squared temperature. In the paper, as far as this could be confirmed, it is KL(embeddings ‖ larger), summed over the
anchors. The README of the authors' code has flags that its parser does not accept.
"""
import functools

import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
REQUIRES_CRITERIA = ('loss_s2sd_source', 'loss_s2sd_target')    # Criterion(opt, build) builds the losses of these flags
FLAGS = {
    'source': {'default': 'multisimilarity', 'help': 'name of the loss of the embeddings, as for --loss'},
    'target': {'default': 'multisimilarity', 'help': 'name of the loss of the larger embeddings, as for --loss'},
    'T': {'argument': 'temperature', 'above': 0},
    'w': {'argument': 'weight', 'at_least': 0},
    'pool_aggr': {'default': False, 'help': 'compute the larger embeddings from mean plus maximum of the feature maps '
                                            'instead of pooled features'},
    'target_dims': {'default': [512, 1024, 1536, 2048], 'at_least': 1, 'help': 'dimensions of the larger embeddings'},
    'feat_distill': {'default': False, 'help': 'distil from the features too, in addition to the larger embeddings'},
    'feat_w': {'default': 50.0, 'at_least': 0, 'help': 'weight of the distillation from the features'},
    'feat_distill_delay': {'default': 1000, 'at_least': 0,
                           'help': 'number of batches before the distillation from the features begins'},
}


def distillation(cosines, targets, temperature=1.0):
    """T² times the mean over rows of KL(softmax(targets / T) ‖ softmax(cosines / T)). cosines, targets: [B, B]."""
    logarithms, wanted = ((similarities / temperature).log_softmax(dim=1) for similarities in (cosines, targets))
    return temperature ** 2 * F.kl_div(logarithms, wanted, reduction='batchmean', log_target=True)


def s2sd_loss(batch, features, heads, source, targets, temperature=1.0, weight=50.0, feature_weight=0.0):
    """
    Args:
        batch:          [B, D] embeddings, normalised here.
        features:       [B, F] pooled features, from which the embeddings were computed.
        heads:          m functions from the features to larger embeddings [B, D_b], normalised here.
        source:         the loss of the embeddings, a function from [B, D] to a scalar.
        targets:        the losses of the larger embeddings, m functions from [B, D_b] to a scalar.
        temperature:    T, temperature of the distillation; the cosines are divided by it.
        weight:         w, weight of the distillation from the larger embeddings.
        feature_weight: w_f, weight of the distillation from the features; 0 means no such distillation.

    Returns: scalar, half the sum of the source's loss and the mean of the targets' losses, plus w times the mean of the
    distillations from the cosines of the larger embeddings, plus w_f times the distillation from the cosines of the
    features. In the distillations, larger embeddings and features get no gradient.

    >>> batch, features = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0., 1.], [0., 1., 1.]])
    >>> s2sd_loss(batch, features, [lambda features: features.flip(1)], lambda batch: batch.sum(), [torch.max])
    tensor(1.6128)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        features = features.to(batch.dtype)
        larger = [F.normalize(head(features), dim=1) for head in heads]
        losses = [target(embeddings) for target, embeddings in zip(targets, larger, strict=True)]
        cosines = batch @ batch.T
        distilled = [distillation(cosines, (embeddings @ embeddings.T).detach(), temperature) for embeddings in larger]
        total = (source(batch) + sum(losses) / len(losses)) / 2 + weight * sum(distilled) / len(distilled)
        if feature_weight:
            features = F.normalize(features.detach(), dim=1)
            total = total + feature_weight * distillation(cosines, features @ features.T, temperature)
        return total


class Criterion(torch.nn.Module):
    """
    opt:   loss_s2sd_source, _target, _T, _w, _pool_aggr, _target_dims, _feat_distill, _feat_w, _feat_distill_delay, lr,
           embed_dim, n_features (number of pooled features) and, with _pool_aggr, n_maps (number of feature maps).
    build: (name of a loss, dimension of its embeddings) -> the loss.
    """

    def __init__(self, opt, build):
        super().__init__()
        self.temperature = opt.loss_s2sd_T
        self.weight = opt.loss_s2sd_w
        self.distils_features = opt.loss_s2sd_feat_distill
        if self.distils_features:
            self.feature_weight = opt.loss_s2sd_feat_w
            self.delay = opt.loss_s2sd_feat_distill_delay
        self.pools_maps = opt.loss_s2sd_pool_aggr
        self.lr = opt.lr
        self.inputs = ['feature_maps'] if self.pools_maps else []
        if self.pools_maps and opt.n_maps is None:
            raise ValueError('--loss_s2sd_pool_aggr: the network of --arch has no feature maps, or does not pool them '
                             'by their average; give --pool avg, or leave the flag out')
        n_features = opt.n_maps if self.pools_maps else opt.n_features
        dims = opt.loss_s2sd_target_dims
        self.heads = torch.nn.ModuleList([
            torch.nn.Sequential(torch.nn.Linear(n_features, dim), torch.nn.ReLU(), torch.nn.Linear(dim, dim))
            for dim in dims])
        self.source = build(opt.loss_s2sd_source, opt.embed_dim)
        self.targets = torch.nn.ModuleList([build(opt.loss_s2sd_target, dim) for dim in dims])
        if hasattr(self.source, 'ranking_embeddings'):
            self.ranking_embeddings = lambda batch: self.source.ranking_embeddings(F.normalize(batch, dim=1))
        self.n_batches = 0                               # kept on the host: no step waits for the device

    def get_extra_state(self):
        return {'n_batches': self.n_batches}

    def set_extra_state(self, state):
        self.n_batches = state['n_batches']

    def forward(self, batch, labels, batch_features, feature_maps=None, **kwargs):
        """
        batch [B, D] embeddings, labels [B] int64, batch_features [B, F], feature_maps [B, n_maps, h, w] with
        _pool_aggr, on one device -> scalar.
        """
        features = batch_features.flatten(1)
        if self.pools_maps:
            features = feature_maps.mean(dim=(2, 3)) + feature_maps.amax(dim=(2, 3))
        source, *targets = (functools.partial(criterion, labels=labels, batch_features=batch_features,
                                              feature_maps=feature_maps, **kwargs)
                            for criterion in (self.source, *self.targets))
        feature_weight = self.feature_weight if self.distils_features and self.n_batches >= self.delay else 0
        self.n_batches += 1
        return s2sd_loss(batch, features, self.heads, source, targets, self.temperature, self.weight, feature_weight)

    def parameter_groups(self):
        return [{'name': 'criterion_heads', 'params': list(self.heads.parameters()), 'lr': self.lr}] + [
            group for criterion in (self.source, *self.targets) for group in criterion.parameter_groups()]
