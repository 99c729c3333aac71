"""What the tests of the losses share: variants of each loss, test batches, and how to call a loss and its reference."""
import inspect

import torch

import batch_mining
import criteria
from tests.criteria import references
from tests.helpers import LABELS, UNIT, manual_seed, published  # noqa: F401
from utilities.mined import fitted

# The losses of this project, whose files begin with its licence. They need a reference, a known number and a row in
# docs/losses.md; a loss that somebody adds for work of their own does not.
PUBLISHED = published(criteria.CRITERIA)


def takes_masks(loss):
    """Whether the miner of a loss gives it masks of pairs, if it makes some."""
    module = criteria.CRITERIA[loss]
    return module.REQUIRES_BATCHMINER and fitted(module, lambda batch, labels: None, '').takes_masks


def naming(keyword):
    """The names of the losses whose forward() names this keyword."""
    return [loss for loss, module in criteria.CRITERIA.items()
            if keyword in inspect.signature(module.Criterion.forward).parameters]


F64 = torch.float64
RAW = UNIT * torch.tensor([1, 1.5, .5, 2, 1, .5], dtype=F64)[:, None]
VECTORS = torch.tensor([(3, 4, 0), (0, 4, 3), (-1, 0, 1)], dtype=F64)
CENTRES = torch.tensor([[(3, 4, 0), (1, 0, 0)], [(0, 4, 3), (0, 0, 2)], [(-1, 0, 1), (0, 1, -1)]], dtype=F64)
TRIPLETS = [(0, 1, 2), (1, 0, 3), (2, 3, 1), (3, 2, 5), (4, 5, 0), (5, 4, 1)]

# Flags besides the defaults, without the loss's name in front
VARIANTS = {
    'angular': [{'alpha': 36., 'npair_ang_weight': .5}, {'npair_ang_weight': 0.}],
    'antico': [{'type': 'all_proxy', 'rate_scale': 'coding_rate', 'rate_term': 'linear'},
               {'type': 'pair', 'gam1': 2., 'gam2': .5, 'eps': .1, 'w_align': 1.}],
    'arcface': [{'angular_margin': 2.2}, {'angular_margin': 0.}],
    'center': [{'alpha': 1.}],
    'circle': [{'margin': .25, 'gamma': 128.}],
    'contextual': [{'k': 2, 'eps': .2, 'reg_weight': 1., 'pos_margin': .9}, {'k': 20}],      # 20: all are neighbours
    'contrastive': [{'active_only': True, 'pos_margin': .2, 'neg_margin': 1.4}],
    'cosface': [{'margin': .1, 'scale': 8.}],
    'dcl': [{'weighted': True}, {'weighted': True, 'temperature': .5, 'sigma': .1}],
    'dr_multisimilarity': [{'gamma': 0.}, {'margin': 2., 'gamma': .5}],
    'dr_proxynca': [{'gamma': 0.}, {'scale': 3.}, {'scale': .7, 'gamma': 2.}],
    'dr_triplet': [{'gamma': 0.}],
    'dynamic_arcface': [{'n_centers': 1, 'margin_high': 2.2, 'feature_scale': 16.}, {'power': 1., 'margin_low': .2}],
    'fastap': [{'nbins': 1}, {'nbins': 37}],
    'happier': [{'lambda': 0., 'offset': 1.44}, {'lambda': 1.}, {'alpha': 2., 'tau': .1, 'rho': 5., 'delta': .2}],
    'hier': [{'margin': 1.}, {'clip_r': 0., 'c': .3, 'temperature': 1.}],
    'histogram': [{'nbins': 11}, {'nbins': 2}],
    'hyperbolic': [{'c': 0., 'temperature': .1}, {'c': 1., 'clip_r': 0.}],
    'ldam': [{'max_margin': .2, 'scale': 8., 'weights_beta': .99}, {'weights_beta': 1.}],
    'lifted': [{'l2': 0., 'neg_margin': 2.}],
    'liftedstructure': [{'l2': .1, 'neg_margin': .5}],
    'margin': [{'nu': .01}, {'beta_shared': True, 'nu': .1}, {'beta_constant': True}, {'margin': .05, 'beta': .6}],
    'mfcont': [{'neg_margin': 1., 'reg_weight': 1.}],
    'mfcwms': [{'alpha': 2., 'beta': 40., 'margin': .5, 'reg_weight': 1.}],
    'multisimilarity': [{'margin': 2.}, {'pos_weight': 5., 'neg_weight': 10., 'thresh': .8, 'margin': .3}],
    'nir': [{'noise': .5, 'w_align': 1., 'nf_cblocks': 3}, *(
        {'nf_cond_mode': mode} for mode in ('dense_embed', 'dense_embed_multi', 'dense_embed_multi_stacked', 'start',
                                            'mid', 'end'))],
    'npair': [{'negatives': 'pairs'}, {'l2': 0.}],
    'ntxent': [{'temperature': .5}],
    'oproxy': [{'mode': 'nca'}, {'pos_alpha': 4., 'neg_alpha': 8., 'pos_delta': .3, 'neg_delta': .2}],
    'pfml': [{'n_proxies': 1, 'alpha': 2., 'delta': .8}, {'n_proxies': 2, 'alpha': 1.}],
    'proxyanchor': [{'margin': .3, 'alpha': 8.}],
    'proxynca': [{'scale': 1.}],
    'proxynca_pp': [{'scale': 1.}],
    'quadruplet': [{'margin_alpha_1': .5, 'margin_alpha_2': 1.}],
    'recallatk': [{'simix': True}, {'k': [1, 3], 'k_temperature': .5, 'rank_temperature': .1},
                  {'k': [1, 2], 'k_temperature': 5.}],                       # where min(k, ·) cuts off
    'roadmap': [{'offset': 1.44}, {'tau': .1, 'rho': 5., 'delta': .2, 'lambda': 0.},
                {'lambda': 1., 'pos_margin': .5, 'neg_margin': -.2}],
    's2sd': [{'T': .5, 'w': 1., 'feat_distill': True, 'feat_distill_delay': 0}, {'feat_distill': True},
             {'source': 'softmax', 'target': 'softmax', 'pool_aggr': True, 'target_dims': [3]}],
    'smoothap': [{'temperature': .1}],
    'snr': [{'margin': .5, 'reg_lambda': .1}],
    'snr_contrastive': [{'pos_margin': .3, 'neg_margin': 1.5, 'reg_lambda': .1}],
    'softmax': [{'temperature': .5}],
    'softtriplet': [{'n_centroids': 1}, {'n_centroids': 4, 'lambda': 20., 'gamma': .5, 'margin_delta': .1}],
    'subcenter_arcface': [{'n_centers': 1, 'angular_margin': 2.2, 'feature_scale': 16.}],
    'supcon': [{'temperature': .5}],
    'tcm': [{'margin_neg': .6, 'weight_pos': .5, 'weight_neg': 2.}],
    'triplet': [{'power': 1.}, {'power': 1., 'active_only': True}, {'active_only': True, 'margin': .5}],
}
# Sizes that the references' loops can afford
SMALL = {
    'hier': {'n_proxies': 5, 'n_triplets': 3, 'k': 3},
    's2sd': {'target_dims': [5, 3]},
    'nir': {'nf_fc_width': 5, 'nf_fc_depth': 3, 'nf_cblocks': 2},
}
CASES = [(loss, flags) for loss in PUBLISHED for flags in [{}, *VARIANTS.get(loss, [])]]


def named(case):
    loss, flags = case
    return ' '.join([loss, *(f'{name}={value}' for name, value in flags.items())])


def flags_of(opt, loss, flags, **more):
    """The namespace of the loss with some of its flags changed, and its miner: its only one, or `all`."""
    allowed, flags = getattr(criteria.CRITERIA[loss], 'ALLOWED_MINING_OPS', None), SMALL.get(loss, {}) | flags
    given = {'batch_mining': allowed[0] if allowed else 'all', 'n_classes': 4, 'embed_dim': 4, 'bs': 6} | more
    given['class_counts'] = ([16, 4, 1, 9] * given['n_classes'])[:given['n_classes']]
    given |= dict.fromkeys(('n_features', 'n_maps'), given['embed_dim'])
    if loss in naming('teacher_batch'):
        given |= {'distill': 'a run folder', 'distill_w': 0.}
    return opt(loss=loss, **given, **{f'loss_{loss}_{name}': value for name, value in flags.items()})


class Recorder:
    """A miner, with what it gave last, as the references take it."""

    def __init__(self, miner):
        self.miner, self.last = miner, None

    def __call__(self, batch, labels):
        mined = self.miner(batch, labels)
        if isinstance(mined, tuple):
            self.last = tuple([tuple(pair) for pair in mask.nonzero().tolist()] for mask in mined)
        else:
            self.last = [tuple(triple) for triple in torch.as_tensor(mined).tolist()]
        return mined


def every_triple(batch, labels):
    return references.all_triplets(labels.tolist())


def build(namespace, miner=None, weights=None):
    """The criterion in float64, with these parameters, and the recorder of its miner; None where it needs none."""
    recorder = None
    if criteria.CRITERIA[namespace.loss].REQUIRES_BATCHMINER:
        recorder = Recorder(miner or batch_mining.select(namespace))
    criterion = criteria.select(namespace, recorder).double().eval()       # eval: the centres of center do not move
    for parameter in criterion.parameters():
        parameter.data = parameter.data if weights is None else weights.clone()
    return criterion, recorder


def slow(criterion, recorder, namespace, batch, labels):
    """The reference's value, on the criterion's parameters and on what its miner gave last."""
    function, labels = getattr(references, namespace.loss), labels.tolist()
    more = [] if recorder is None else [recorder.last]
    if namespace.loss == 'quadruplet':
        manual_seed(0)
        triplets = torch.tensor(recorder.last, dtype=torch.int64).reshape(-1, 3)
        more.append(criteria.quadruplet.sample_fourths(torch.tensor(labels), triplets).tolist())
    if namespace.loss == 'recallatk' and namespace.loss_recallatk_simix:
        manual_seed(0)
        more.append(torch.rand(len(references.all_pairs(labels)[0]) // 2, dtype=F64).tolist())
    if namespace.loss == 'nir':
        manual_seed(0)
        more.append((criterion.flow.orders.tolist(), torch.rand_like(batch)))
    if namespace.loss == 'center':
        more.append(criterion.centers)
    if namespace.loss == 'hier':
        more.append(drawn_by_hier(batch, labels, namespace, *criterion.parameters()))
    return function(batch, labels, namespace, *more, *criterion.parameters())


def drawn_by_hier(batch, labels, namespace, proxies):
    """What references.hier takes: the triplets and the noise that the loss samples with the seed 0."""
    manual_seed(0)
    module, c, drawn, labels = criteria.hier, namespace.loss_hier_c, [], torch.tensor(labels)
    for rows, same in ((batch, labels[:, None] == labels), (proxies, 0)):
        points = [references.to_ball(row, c, namespace.loss_hier_clip_r) for row in rows.detach()]
        distances = references.table(lambda z, w: float(references.ball_distance(z, w, c)) * (not z.equal(w)), points)
        similarities = (-torch.tensor(distances, dtype=F64)).exp() + same
        triplets, is_valid = module.sample_triplets(similarities, namespace.loss_hier_k, namespace.loss_hier_n_triplets)
        triplets = triplets[is_valid]                                # without any, there is no chunk, and no noise
        noise = [module.gumbel(len(triplets), len(proxies), like=batch) for _ in range(2 if len(triplets) else 0)]
        drawn.append((triplets.tolist(), *([part.tolist() for part in noise] or [[], []])))
    return drawn


def fast(criterion, batch, labels, **kwargs):
    """The loss, given all keywords of docs/extending.md."""
    manual_seed(0)
    given = {'batch_features': batch, 'f_embed': torch.nn.Identity(), 'indices': torch.arange(len(batch)), 'step': 1,
             'epoch': 1, 'feature_maps': maps_of(batch), 'images': maps_of(batch.detach())[:, :3],
             'teacher_batch': batch.detach()}
    return criterion(batch=batch, labels=labels, **given | kwargs)


def maps_of(batch):
    """Feature maps [B, D, 2, 2]."""
    return batch[:, :, None, None] * torch.tensor([[1., .5], [-1., 2.]], dtype=batch.dtype, device=batch.device)


def gradients(value, batch, criterion):
    """Of the batch and of each parameter that trains; 0 where the value does not depend on one."""
    wanted = [batch, *(parameter for parameter in criterion.parameters() if parameter.requires_grad)]
    found = torch.autograd.grad(value, wanted, allow_unused=True)
    return [torch.zeros_like(tensor) if gradient is None else gradient
            for tensor, gradient in zip(wanted, found, strict=True)]
