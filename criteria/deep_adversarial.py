# SPDX-License-Identifier: MIT
"""
Deep adversarial metric learning: a generator makes hard negatives for any loss of triplets. Duan et al., Deep
Adversarial Metric Learning, CVPR 2018, section 3.
"""
import itertools

import torch
import torch.nn.functional as F
from torch.func import functional_call

NEEDS = 'it is for losses of triplets, such as triplet, margin or contrastive'
SET_BY = ('daml',)
FLAGS = {
    'daml': {'default': False,
             'help': 'deep adversarial metric learning: a generator makes a hard negative for each triplet'},
    'daml_weight': {'argument': 'weight', 'at_least': 0},
    'daml_real_weight': {'argument': 'real_weight', 'at_least': 0},
    'daml_reg_weight': {'argument': 'reg_weight', 'at_least': 0},
    'daml_adv_weight': {'argument': 'adv_weight', 'at_least': 0},
    'daml_margin': {'argument': 'margin', 'help': '--daml: margin in the term of --daml_adv_weight, a squared '
                                                  'distance of embeddings'},
    'daml_layers': {'argument': 'widths', 'at_least': 1, 'nargs': '*'},
    'daml_lr': {'default': -1.0,
                'help': '--daml: learning rate of the generator; a negative value means --lr'},
    'daml_delay': {'argument': 'delay', 'at_least': 0},
}


def generator_losses(synthetic, anchors, negatives, d_ap, d_as, margin=0.2):
    """
    Args:
        synthetic: [T, F] features of the synthetic negatives.
        anchors:   [T, F] features of the anchors.
        negatives: [T, F] features of the negatives that the synthetic ones replace.
        d_ap:      [T] squared distances of the embeddings of anchor and positive.
        d_as:      [T] squared distances of the embeddings of anchor and synthetic negative.
        margin:    α, a squared distance.

    Returns: three scalars, means over the triplets, 0 without triplets. J_hard: ‖s − a‖² of the features; J_reg:
    ‖s − n‖² of the features; J_adv: [ d_as − d_ap − α ]₊, which is 0 if the synthetic negative violates the margin.

    >>> rows = torch.tensor([[1., 1.]])
    >>> generator_losses(rows, 0 * rows, 3 * rows, d_ap=torch.tensor([0.5]), d_as=torch.tensor([1.0]), margin=0.25)
    [tensor(2.), tensor(8.), tensor(0.2500)]
    """
    terms = ((synthetic - anchors).square().sum(dim=1), (synthetic - negatives).square().sum(dim=1),
             F.relu(d_as - d_ap - margin))
    return [term.sum() / max(len(synthetic), 1) for term in terms]


class DeepAdversarial(torch.nn.Module):
    """
    w times the loss of the mined triplets, plus λ times the loss of the same triplets with synthetic negatives, plus
    the generator's objective J_hard + λ₁ J_reg + λ₂ J_adv.

    The generator maps the pooled features of anchor, positive and negative to the features of a synthetic negative,
    which the embedding layer embeds. The generator's objective trains the generator only; the loss with synthetic
    negatives trains everything else.

    Args:
        criterion:   a loss of triplets, which takes its triplets from `given`, and gives its parameter_groups().
        given:       the miner of this loss, an object that returns its `of_step.tuples`, which forward() sets.
        miner:       (batch [B, D], labels [B]) -> triplets [T, 3].
        n_features:  F, number of pooled features.
        normalize:   whether the network normalises its embeddings, so that synthetic ones are normalised too.
        widths:      widths of the hidden layers of the generator of --daml.
        lr:          learning rate of the generator.
        weight:      λ, weight of the loss of the triplets with synthetic negatives.
        reg_weight:  λ₁, weight of the distance between synthetic and replaced negatives.
        adv_weight:  λ₂, weight of the term that makes synthetic negatives violate the margin.
        margin:      α, a squared distance of embeddings.
        real_weight: w, weight of the loss of the mined triplets; 0 means that only synthetic negatives are used.
        delay:       number of batches before synthetic negatives train the network, with w = 1; the generator starts at
                     once.
    """

    def __init__(self, criterion, given, miner, n_features, normalize=True, widths=(512, 512), lr=1e-5, weight=1.0,
                 reg_weight=1.0, adv_weight=50.0, margin=0.2, real_weight=1.0, delay=0):
        super().__init__()
        self.criterion = criterion
        self.given = given
        self.miner = miner
        self.normalize = normalize
        self.weights = (1.0, reg_weight, adv_weight)
        self.weight = weight
        self.real_weight = real_weight
        self.margin = margin
        self.delay = delay
        layers = [torch.nn.Linear(*sizes) for sizes in itertools.pairwise([3 * n_features, *widths, n_features])]
        self.generator = torch.nn.Sequential(*[part for layer in layers for part in (torch.nn.ReLU(), layer)][1:])
        self.lr = lr
        self.n_batches = 0                               # kept on the host: no step waits for the device

    def get_extra_state(self):
        return {'n_batches': self.n_batches}

    def set_extra_state(self, state):
        self.n_batches = state['n_batches']

    def forward(self, batch, labels, batch_features, f_embed, **kwargs):
        """
        batch [B, D] embeddings, labels [B] int64, batch_features [B, F], on one device; f_embed: the embedding layer,
        features [T, F] -> embeddings [T, D] before they are normalised -> scalar.
        """
        batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
        with torch.autocast(batch.device.type, enabled=False):
            triplets = self.miner(batch, labels)
            features = batch_features.flatten(1).to(batch.dtype)
            loss = self.tuple_loss(triplets, batch, labels, features, f_embed, **kwargs)
            log = getattr(self.criterion, 'log', {})                  # scalars of the real triplets
            anchors, positives, negatives = features.detach()[triplets.T]
            synthetic = self.generator(torch.cat([anchors, positives, negatives], dim=1))
            fixed = {name: parameter.detach() for name, parameter in f_embed.named_parameters()}
            a, p = batch.detach()[triplets[:, :2].T]
            s = self.normalized(functional_call(f_embed, fixed, (synthetic,)))
            parts = generator_losses(synthetic, anchors, negatives, (a - p).square().sum(dim=1),
                                     (a - s).square().sum(dim=1), self.margin)
            self.log = log | {f'generator_{name}': part.detach()
                              for name, part in zip(('hard', 'reg', 'adv'), parts, strict=True)}
            if self.n_batches >= self.delay:
                made = self.with_synthetic(synthetic.detach(), triplets, batch, labels, features, f_embed, **kwargs)
                self.log['synthetic_loss'] = made.detach()
                loss = self.real_weight * loss + self.weight * made
            self.n_batches += 1
            return loss + sum(weight * part for weight, part in zip(self.weights, parts, strict=True))

    def with_synthetic(self, synthetic, triplets, batch, labels, features, f_embed, **kwargs):
        """The loss of the batch with one more sample per triplet, which replaces its negative and has its class."""
        anchors, positives, negatives = triplets.T
        made = torch.arange(len(batch), len(batch) + len(triplets), device=batch.device)
        kwargs = {name: kwargs[name] for name in ('step', 'epoch') if name in kwargs}       # others are for real images
        return self.tuple_loss(
            torch.stack([anchors, positives, made], dim=1), torch.cat([batch, self.normalized(f_embed(synthetic))]),
            torch.cat([labels, labels[negatives]]), torch.cat([features, synthetic]), f_embed, **kwargs)

    def tuple_loss(self, triplets, batch, labels, features, f_embed, **kwargs):
        self.given.of_step.tuples = triplets
        return self.criterion(batch=batch, labels=labels, batch_features=features, f_embed=f_embed, **kwargs)

    def parameter_groups(self):
        return [{'name': 'criterion_generator', 'params': list(self.generator.parameters()), 'lr': self.lr},
                *self.criterion.parameter_groups()]

    def normalized(self, embeddings):
        return F.normalize(embeddings, dim=1) if self.normalize else embeddings


def around(opt, build, miner):
    if miner is None or miner.use != 'triplets':
        return build(opt, miner)
    given = miner.given()
    criterion = build(opt, given)
    of_images = criterion.takes & {'feature_maps', 'images', 'indices', 'teacher_batch'}
    if of_images:
        raise ValueError(f'--daml does not work with --loss {opt.loss}, which takes {", ".join(sorted(of_images))}: '
                         'synthetic negatives have only features and embeddings')
    lr = opt.lr if opt.daml_lr < 0 else opt.daml_lr
    return DeepAdversarial(
        criterion, given, miner.listing(), opt.n_features, '_normalize' in opt.arch, opt.daml_layers, lr,
        opt.daml_weight, opt.daml_reg_weight, opt.daml_adv_weight, opt.daml_margin, opt.daml_real_weight,
        opt.daml_delay)


def problem(opt):
    if opt.cascade:
        return '--daml does not work with --cascade: synthetic negatives have features of the last block only'
    if opt.xbm_size:
        return '--daml does not work with --xbm_size: synthetic negatives would be stored in the memory bank'
    if opt.embed_norm == 'batch':
        return ('--daml does not work with --embed_norm batch, since synthetic features would change its statistics; '
                'use --embed_norm layer or none')
    return None
