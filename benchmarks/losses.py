"""
Time and memory of the losses in CASES, forward and backward on the CPU, and of their counterparts in
pytorch-metric-learning.

python -m benchmarks.losses [--losses NAME ...] [--sizes B ...] [--dims D ...]
python -m benchmarks.losses --classes 100 11318     losses with class weights, for these numbers of classes
"""
import argparse
import math
import os
import sys
from dataclasses import dataclass, field
from functools import partial

import torch
from tqdm import tqdm

import batch_mining
import criteria
import parameters
from batch_mining.random_triplets import random_triplets
from benchmarks.measure import median_times, peak_memory
from records import run_folder
from utilities import errors, libraries
from utilities.text_tables import markdown

SIZES = {112: 2, 512: 4, 2048: 4}                         # batch size: images of each class
DIMS = (128, 512)                                         # default dimensions
REPEATS = 15
BUDGET = 4.0
N_FEATURES = 2048                                         # number of features of the backbone


@dataclass
class Case:
    """
    A loss, or a sum of losses, with its flags.

    triplets:  whether both losses get B random triplets, instead of tuples from `batch_mining` and the library.
    most:      the largest batch size for which the counterpart is called, 0 without one; for more, it takes 8 GB or
               minutes.
    n_classes: the largest number of classes for which the counterpart is called, or without a counterpart the loss.
    features:  whether the loss reads the features of the backbone.
    """
    loss: str
    batch_mining: str = 'none'
    flags: dict = field(default_factory=dict)
    triplets: bool = False
    most: float = math.inf
    n_classes: float = math.inf
    features: bool = False


def counterparts(n_classes, dim):
    """
    {loss of our cases, or one case: () -> its counterpart in pytorch-metric-learning}. Raises UserError without that
    library.
    """
    libraries.require_library('the comparison of losses')
    from pytorch_metric_learning import distances, losses, miners, reducers, regularizers
    euclidean = distances.LpDistance(power=1, normalize_embeddings=False)
    squared = distances.LpDistance(power=2, normalize_embeddings=False)
    product = distances.DotProductSimilarity(normalize_embeddings=False)
    snr = distances.SNRDistance(normalize_embeddings=False)
    mean = reducers.MeanReducer()
    zero_mean = regularizers.ZeroMeanRegularizer()
    of_classes = {'num_classes': n_classes, 'embedding_size': dim}

    def multisimilarity():
        loss = losses.MultiSimilarityLoss(2, 40, 0.5)
        miner = miners.MultiSimilarityMiner(0.1)
        return lambda batch, labels: loss(batch, labels, miner(batch, labels))

    def softtriplet():
        regularizer = regularizers.SparseCentersRegularizer(n_classes, 2)
        return losses.SoftTripleLoss(n_classes, dim, 2, 8, weight_regularizer=regularizer, weight_reg_weight=0.2)

    return {
        'triplet': partial(losses.TripletMarginLoss, 0.2, distance=squared, reducer=mean),
        'margin': partial(losses.MarginLoss, 0.2, 0, 1.2, distance=euclidean, learn_beta=True, num_classes=n_classes),
        'contrastive': partial(losses.ContrastiveLoss, 0, 1, distance=euclidean, reducer=mean),
        'snr': partial(losses.TripletMarginLoss, 0.2, distance=snr, embedding_regularizer=zero_mean,
                       embedding_reg_weight=0.005),
        'snr_contrastive': partial(losses.SignalToNoiseRatioContrastiveLoss, distance=snr,
                                   embedding_regularizer=zero_mean, embedding_reg_weight=0.1),
        'multisimilarity': multisimilarity,
        # the next three counterparts compute less: pairs only, the angular term only, no direction
        'npair': partial(losses.NPairsLoss, distance=product),
        'angular': partial(losses.AngularLoss, 45),
        'dr_triplet': partial(losses.TripletMarginLoss, 0.278, distance=euclidean, reducer=mean),
        'lifted': partial(losses.GeneralizedLiftedStructureLoss, 1, 0, distance=euclidean, reducer=mean),
        'liftedstructure': partial(losses.LiftedStructureLoss, 1, 0, distance=euclidean),
        'histogram': partial(losses.HistogramLoss, 64),
        'ntxent': partial(losses.NTXentLoss, 0.07),
        'supcon': partial(losses.SupConLoss, 0.1),
        'circle': partial(losses.CircleLoss, 0.4, 80),
        'fastap': partial(losses.FastAPLoss, 10),
        # the library swaps the numbers of classes and of images per class, which changes the value, not the time
        'smoothap': losses.SmoothAPLoss,
        'softmax': partial(losses.NormalizedSoftmaxLoss, **of_classes, temperature=0.05),
        'arcface': partial(losses.ArcFaceLoss, **of_classes, margin=math.degrees(0.5), scale=16),
        'cosface': partial(losses.CosFaceLoss, **of_classes, margin=0.35, scale=64),
        'subcenter_arcface': partial(losses.SubCenterArcFaceLoss, **of_classes, margin=math.degrees(0.5), scale=64,
                                     sub_centers=3),
        'softtriplet, no reg.': partial(losses.SoftTripleLoss, **of_classes, centers_per_class=2, la=8),
        'softtriplet': softtriplet,
        'proxyanchor': partial(losses.ProxyAnchorLoss, **of_classes, margin=0.1, alpha=32),
        'proxynca_pp': partial(losses.ProxyNCALoss, **of_classes, softmax_scale=9),
    }


CASES = {
    'triplet, given': Case('triplet', triplets=True),
    'triplet, all': Case('triplet', 'all'),
    'margin, given': Case('margin', triplets=True),
    'margin, all': Case('margin', 'all'),
    'contrastive, given': Case('contrastive', triplets=True),
    'contrastive, all': Case('contrastive', 'all'),
    'snr, given': Case('snr', triplets=True, most=512),
    'snr_contrastive': Case('snr_contrastive', flags={'loss_snr_contrastive_reg_lambda': 0.1}, most=512),
    'npair, pairs': Case('npair', 'npair', {'loss_npair_negatives': 'pairs', 'loss_npair_l2': 0}),
    'npair': Case('npair', 'npair'),
    'angular': Case('angular', 'npair'),
    'dr_triplet, given': Case('dr_triplet', triplets=True),
    'lifted': Case('lifted', 'lifted', {'loss_lifted_l2': 0}),
    **{name: Case(name, most=512) for name in ('liftedstructure', 'histogram', 'ntxent', 'smoothap')},
    **{name: Case(name) for name in (
        'multisimilarity', 'supcon', 'circle', 'fastap', 'softmax', 'arcface', 'cosface', 'subcenter_arcface',
        'proxyanchor', 'proxynca_pp')},
    'softtriplet, no reg.': Case('softtriplet', flags={'loss_softtriplet_reg_weight': 0}),
    # the library's regulariser takes all pairs of centres of all classes
    'softtriplet': Case('softtriplet', n_classes=1024),
    **{name: Case(name, most=0) for name in (
        'proxynca', 'dr_proxynca', 'dr_multisimilarity', 'hyperbolic', 'recallatk', 'roadmap', 'oproxy', 'nir',
        'happier', 'multisimilarity+tcm', 'proxyanchor+tcm', 'multisimilarity+hier', 'proxyanchor+hier')},
    'quadruplet, given': Case('quadruplet', triplets=True, most=0),
    's2sd': Case('s2sd', features=True, most=0),
    's2sd of proxyanchor': Case('s2sd', flags={'loss_s2sd_source': 'proxyanchor', 'loss_s2sd_target': 'proxyanchor'},
                                features=True, most=0),
    'pfml': Case('pfml', n_classes=300, most=0),               # its time grows with the square of the number of classes
    'pfml, 2 proxies': Case('pfml', flags={'loss_pfml_n_proxies': 2}, n_classes=3000, most=0),
}


def random_batch(n_samples, n_images, dim):
    """
    Embeddings [B, D] of norm 1 that require a gradient, and labels [B]. Classes overlap, so that miners find tuples.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n_samples // n_images).repeat_interleave(n_images)
    centres = torch.randn(n_samples // n_images, dim, generator=generator)
    batch = centres[labels] + 2 * torch.randn(n_samples, dim, generator=generator)
    return torch.nn.functional.normalize(batch, dim=1).requires_grad_(), labels


def step(loss, arguments):
    """A function that computes the loss and its gradient."""
    parameters = loss.parameters() if isinstance(loss, torch.nn.Module) else []
    tensors = [*arguments, *parameters]
    trained = [tensor for tensor in tensors if getattr(tensor, 'requires_grad', False)]
    return lambda: torch.autograd.grad(loss(*arguments), trained, allow_unused=True)


def our_loss(case, batch, labels, triplets, n_classes):
    """(the loss, its arguments)"""
    opt = parameters.build().parse_args([])
    vars(opt).update(case.flags, loss=case.loss, batch_mining='random' if case.triplets else case.batch_mining,
                     n_classes=n_classes, embed_dim=batch.shape[1], device=batch.device, n_features=N_FEATURES,
                     n_maps=N_FEATURES, superclasses=(torch.arange(n_classes) % 12)[:, None])
    miner = (lambda batch, labels: triplets) if case.triplets else batch_mining.select(opt)
    features = [torch.rand(len(batch), N_FEATURES).requires_grad_()] if case.features else []
    return criteria.select(opt, miner), (batch, labels, *features)


def row(name, n_samples, dim, n_classes=None):
    """The cells of a row of the table, with - for a loss that cannot be called with this size."""
    case = CASES[name]
    batch, labels = random_batch(n_samples, SIZES[n_samples], dim)
    torch.manual_seed(0)
    triplets = random_triplets(labels, n_samples) if case.triplets else None
    n_classes = n_classes or int(labels.max()) + 1
    are_few = n_classes <= case.n_classes
    steps = {}
    if case.most or are_few:
        steps['ours'] = step(*our_loss(case, batch, labels, triplets, n_classes))
    if n_samples <= case.most and are_few:
        found = counterparts(n_classes, dim)
        build = found[name if name in found else case.loss]
        tuples = [tuple(triplets.T)] if case.triplets else []
        steps['theirs'] = step(build(), (batch, labels, *tuples))
    seconds = median_times(steps, REPEATS, BUDGET)
    peaks = {side: peak_memory(function) for side, function in steps.items()}
    cells = [name, f'{n_samples:,}', dim, f'{n_classes:,}']
    for values, unit in (seconds, 1e-3), (peaks, 1e6):
        cells += [f'{values[side] / unit:,.2f}' if side in values else '-' for side in ('ours', 'theirs')]
        cells.append(f'{values["ours"] / values["theirs"]:.2f}' if 'theirs' in values else '-')
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measured = sorted({part for case in CASES.values() for part in case.loss.split('+')})
    parser.add_argument('--losses', nargs='+', default=measured, metavar='NAME', choices=measured,
                        help=', '.join(measured))
    parser.add_argument('--sizes', nargs='+', type=int, default=list(SIZES), choices=list(SIZES), help='batch sizes')
    parser.add_argument('--dims', nargs='+', type=int, default=list(DIMS), help='dimensions of the embeddings')
    parser.add_argument('--classes', nargs='+', type=int, metavar='N',
                        help='numbers of training classes, at least 56, with batches of 112')
    opt = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name, case in CASES.items() if {*case.loss.split('+')} & {*opt.losses}]
    if opt.classes:
        modules = {name: [criteria.CRITERIA[part] for part in CASES[name].loss.split('+')] for name in names}
        names = [name for name, parts in modules.items() if any(module.REQUIRES_OPTIM for module in parts)
                 and not any(module.REQUIRES_BATCHMINER for module in parts)]
        opt.sizes = [112]
    points = [(name, size, dim, n_classes) for name in names for size in opt.sizes for dim in opt.dims
              for n_classes in opt.classes or [None]]
    rows = [row(*point) for point in tqdm(points, desc='comparisons', disable=None)]
    versions = run_folder.versions()
    print(f'torch {versions["torch"]}, {libraries.PACKAGE} {versions.get(libraries.PACKAGE, "not installed")}, one '
          f'thread, {versions["processor"]}, {os.cpu_count()} cores; median processor time, forward and backward')
    print(markdown(['loss', 'batch', 'dim', 'classes', 'ms', 'counterpart', 'ratio', 'MB', 'counterpart', 'ratio'],
                   rows))


if __name__ == '__main__':
    sys.exit(errors.exit_code('benchmarks.losses', main))
