"""
Time and memory of every loss, forward and backward on the CPU, and of its counterpart in pytorch-metric-learning.

python -m benchmarks.losses [--losses NAME ...] [--sizes B ...] [--dims D ...] [--json FILE]
python -m benchmarks.losses --classes 100 11318     losses with class weights, for these numbers of classes
python -m benchmarks.losses --growth                growth of time and memory, from 512 to 1,024 samples
"""
import argparse
import json
import math
import os
import time
from dataclasses import dataclass, field
from importlib.metadata import version

import torch
from tqdm import tqdm

import batch_mining
import criteria
import parameters
from batch_mining.random_triplets import random_triplets
from benchmarks import Row
from benchmarks.measure import median_times, peak_memory, table
from utilities import pml
from utilities.machine import processor

SIZES = {112: 2, 512: 4, 1024: 4, 2048: 4}               # batch size: images of each class
TABLE, DIMS = (112, 512, 2048), (128, 512)               # default batch sizes and dimensions of the table
REPEATS, BUDGET = 15, 4.0
CRITERIA = criteria.CRITERIA


@dataclass
class Case:
    """
    A loss with its flags, and its counterpart, a function of the library, n_classes and dim.

    term:     the part of the loss that the counterpart computes, a function of the batch and the mined tuples.
    triplets: whether both losses get B random triplets, instead of tuples from `batch_mining` and the library.
    once:     the batch size from which the counterpart is called only once.
    most:     the largest batch size and the largest batch size x dimension for which the counterpart is called, and
              the memory or time that it would need for more.
    n_classes: the largest number of classes for which the counterpart is called.
    """
    loss: str
    batch_mining: str = 'none'
    flags: dict = field(default_factory=dict)
    counterpart: object = None
    term: object = None
    triplets: bool = False
    once: float = math.inf
    most: tuple = (math.inf, math.inf, '')
    n_classes: float = math.inf


def plain(library, power=1):
    return library.distances.LpDistance(power=power, normalize_embeddings=False)


def mean(library):
    return library.reducers.MeanReducer()


def triplet(library, n_classes, dim):
    return library.losses.TripletMarginLoss(0.2, distance=plain(library, 2), reducer=mean(library))


def margin(library, n_classes, dim):
    return library.losses.MarginLoss(0.2, 0, 1.2, distance=plain(library), learn_beta=True, num_classes=n_classes)


def contrastive(library, n_classes, dim):
    return library.losses.ContrastiveLoss(0, 1, distance=plain(library), reducer=mean(library))


def snr_distance(library):
    return library.distances.SNRDistance(normalize_embeddings=False)


def zero_mean(library, weight):
    return {'embedding_regularizer': library.regularizers.ZeroMeanRegularizer(), 'embedding_reg_weight': weight}


def snr(library, n_classes, dim):
    return library.losses.TripletMarginLoss(0.2, distance=snr_distance(library), **zero_mean(library, 0.005))


def snr_contrastive(library, n_classes, dim):
    return library.losses.SignalToNoiseRatioContrastiveLoss(distance=snr_distance(library), **zero_mean(library, 0.1))


def multisimilarity(library, n_classes, dim):
    loss, miner = library.losses.MultiSimilarityLoss(2, 40, 0.5), library.miners.MultiSimilarityMiner(0.1)
    return lambda batch, labels: loss(batch, labels, miner(batch, labels))


def softtriplet(library, n_classes, dim):
    return library.losses.SoftTripleLoss(n_classes, dim, centers_per_class=2, la=8)


def regularised_softtriplet(library, n_classes, dim):
    regularizer = library.regularizers.SparseCentersRegularizer(n_classes, 2)
    return library.losses.SoftTripleLoss(n_classes, dim, 2, 8, weight_regularizer=regularizer, weight_reg_weight=0.2)


CUBE = 'B³ memory, beyond 8 GB'
LISTS = 'minutes: lists of all triplets'
CASES = {
    'triplet, given': Case('triplet', counterpart=triplet, triplets=True),
    'triplet, all': Case('triplet', 'all', counterpart=triplet, once=2048),
    'margin, given': Case('margin', counterpart=margin, triplets=True),
    'margin, all': Case('margin', 'all', counterpart=margin, once=2048),
    'contrastive, given': Case('contrastive', counterpart=contrastive, triplets=True),
    'contrastive, all': Case('contrastive', 'all', counterpart=contrastive),
    'snr, given': Case('snr', counterpart=snr, triplets=True, once=512, most=(2048, 2048 * 128, CUBE)),
    'snr_contrastive': Case('snr_contrastive', flags={'loss_snr_contrastive_reg_lambda': 0.1}, once=512,
                            counterpart=snr_contrastive, most=(2048, 2048 * 128, CUBE)),
    'multisimilarity': Case('multisimilarity', counterpart=multisimilarity),
    'npair, pairs': Case('npair', 'npair', {'loss_npair_negatives': 'pairs', 'loss_npair_l2': 0},
                         lambda library, n_classes, dim: library.losses.NPairsLoss(
                             distance=library.distances.DotProductSimilarity(normalize_embeddings=False))),
    # the nearest losses of the library compute less: pairs only, the angular term only, no direction
    'npair': Case('npair', 'npair', counterpart=lambda library, n_classes, dim: library.losses.NPairsLoss(
        distance=library.distances.DotProductSimilarity(normalize_embeddings=False))),
    'angular': Case('angular', 'npair', counterpart=lambda library, n_classes, dim: library.losses.AngularLoss(45)),
    'dr_triplet, given': Case('dr_triplet', triplets=True,
                              counterpart=lambda library, n_classes, dim: library.losses.TripletMarginLoss(
                                  0.278, distance=plain(library), reducer=mean(library))),
    # the counterpart takes every positive of an anchor, our loss a random one
    'angular, its term': Case('angular', 'npair', {}, lambda library, n_classes, dim: library.losses.AngularLoss(45),
                              criteria.angular.angular_terms),
    'lifted': Case('lifted', 'lifted', {'loss_lifted_l2': 0},
                   lambda library, n_classes, dim: library.losses.GeneralizedLiftedStructureLoss(
                       1, 0, distance=plain(library), reducer=mean(library))),
    'liftedstructure': Case('liftedstructure', once=512, most=(512, math.inf, CUBE),
                            counterpart=lambda library, n_classes, dim: library.losses.LiftedStructureLoss(
                                1, 0, distance=plain(library))),
    'histogram': Case('histogram', counterpart=lambda library, n_classes, dim: library.losses.HistogramLoss(64),
                      most=(512, math.inf, LISTS)),
    'ntxent': Case('ntxent', counterpart=lambda library, n_classes, dim: library.losses.NTXentLoss(0.07), once=512,
                   most=(512, math.inf, CUBE)),
    'supcon': Case('supcon', counterpart=lambda library, n_classes, dim: library.losses.SupConLoss(0.1)),
    'circle': Case('circle', counterpart=lambda library, n_classes, dim: library.losses.CircleLoss(0.4, 80)),
    'fastap': Case('fastap', counterpart=lambda library, n_classes, dim: library.losses.FastAPLoss(10)),
    # the library swaps the numbers of classes and of images per class, which changes the value, not the time
    'smoothap': Case('smoothap', counterpart=lambda library, n_classes, dim: library.losses.SmoothAPLoss(), once=512,
                     most=(512, math.inf, CUBE)),
    'softmax': Case('softmax', counterpart=lambda library, n_classes, dim: library.losses.NormalizedSoftmaxLoss(
        n_classes, dim, temperature=0.05)),
    'arcface': Case('arcface', counterpart=lambda library, n_classes, dim: library.losses.ArcFaceLoss(
        n_classes, dim, margin=math.degrees(0.5), scale=16)),
    'cosface': Case('cosface', counterpart=lambda library, n_classes, dim: library.losses.CosFaceLoss(
        n_classes, dim, margin=0.35, scale=64)),
    'subcenter_arcface': Case('subcenter_arcface',
                              counterpart=lambda library, n_classes, dim: library.losses.SubCenterArcFaceLoss(
                                  num_classes=n_classes, embedding_size=dim, margin=math.degrees(0.5), scale=64,
                                  sub_centers=3)),
    'softtriplet, no reg.': Case('softtriplet', flags={'loss_softtriplet_reg_weight': 0}, counterpart=softtriplet),
    # the library's regulariser takes all pairs of centres of all classes
    'softtriplet': Case('softtriplet', counterpart=regularised_softtriplet, n_classes=1024),
    'proxyanchor': Case('proxyanchor', counterpart=lambda library, n_classes, dim: library.losses.ProxyAnchorLoss(
        n_classes, dim, margin=0.1, alpha=32)),
    'proxynca_pp': Case('proxynca_pp', counterpart=lambda library, n_classes, dim: library.losses.ProxyNCALoss(
        n_classes, dim, softmax_scale=9)),
    'proxynca': Case('proxynca'),
    'quadruplet, given': Case('quadruplet', triplets=True),
    'dr_proxynca': Case('dr_proxynca'),
    'dr_multisimilarity': Case('dr_multisimilarity'),
    'hyperbolic': Case('hyperbolic'),
    'recallatk': Case('recallatk'),
    'roadmap': Case('roadmap'),
}


def random_batch(n_samples, n_images, dim, seed=0):
    """
    Embeddings [B, D] of norm 1 that require a gradient, and labels [B]. Classes overlap, so that miners find tuples.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n_samples // n_images).repeat_interleave(n_images)
    centres = torch.randn(n_samples // n_images, dim, generator=generator)
    batch = centres[labels] + 2 * torch.randn(n_samples, dim, generator=generator)
    return torch.nn.functional.normalize(batch, dim=1).requires_grad_(), labels


def step(loss, *arguments):
    """A function that computes the loss and its gradient."""
    batch = arguments[0]
    trained = [parameter for parameter in getattr(loss, 'parameters', list)() if parameter.requires_grad]
    return lambda: torch.autograd.grad(loss(*arguments), [batch, *trained], allow_unused=True)


def our_loss(case, batch, labels, triplets, n_classes):
    """(the loss, its arguments)"""
    opt = parameters.build().parse_args([])
    vars(opt).update(case.flags, loss=case.loss, batch_mining='random' if case.triplets else case.batch_mining,
                     n_classes=n_classes, embed_dim=batch.shape[1], device=batch.device)
    miner = (lambda batch, labels: triplets) if case.triplets else batch_mining.select(opt)
    if case.term:
        return lambda batch, labels: case.term(batch, *miner(batch, labels)).mean(), (batch, labels)
    return criteria.select(opt, miner), (batch, labels)


def ours(*args):
    """The step of our_loss."""
    loss, arguments = our_loss(*args)
    return step(loss, *arguments)


def their_loss(case, batch, labels, triplets, n_classes):
    """As our_loss, of the counterpart; None where there is none, or where this is too large for it."""
    n_samples, area, _ = case.most
    if case.counterpart is None or len(batch) > n_samples or batch.numel() > area or n_classes > case.n_classes:
        return None
    pml.require_library('the comparison of losses')
    import pytorch_metric_learning as library
    import pytorch_metric_learning.distances
    import pytorch_metric_learning.losses
    import pytorch_metric_learning.miners
    import pytorch_metric_learning.reducers
    import pytorch_metric_learning.regularizers
    loss = case.counterpart(library, n_classes, batch.shape[1])
    return loss, (batch, labels, *([tuple(triplets.T)] if case.triplets else []))


def theirs(*args):
    """The step of their_loss, or None."""
    found = their_loss(*args)
    return found and step(found[0], *found[1])


def single_call(function):
    """(seconds, peak bytes) of one call, without a warm-up."""
    times = []

    def second_call():
        began = time.process_time()
        if times:
            function()
        times.append(time.process_time() - began)

    peak = peak_memory(second_call)
    return times[1], peak


def compare(name, n_samples, dim, n_classes=None):
    """A row of the table: medians in seconds and peaks in bytes, None where the counterpart was not called."""
    case = CASES[name]
    batch, labels = random_batch(n_samples, SIZES[n_samples], dim)
    torch.manual_seed(0)
    triplets = random_triplets(labels, n_samples) if case.triplets else None
    n_classes = n_classes or int(labels.max()) + 1
    competitors = {'ours': ours(case, batch, labels, triplets, n_classes)}
    counterpart = theirs(case, batch, labels, triplets, n_classes)
    row = {'loss': name, 'batch': n_samples, 'dim': dim, 'classes': n_classes, 'theirs_s': None, 'theirs_bytes': None}
    if counterpart and n_samples >= case.once:
        row['theirs_s'], row['theirs_bytes'] = single_call(counterpart)
    elif counterpart:
        competitors['theirs'] = counterpart
    for side, seconds in median_times(competitors, REPEATS, BUDGET).items():
        row[f'{side}_s'], row[f'{side}_bytes'] = seconds, peak_memory(competitors[side])
    return row


def grow(name, dim=128):
    """A row of the table of --growth: medians and peaks at 512 and 1,024 samples, and the peak at 2,048."""
    case, steps = CASES[name], {}
    for n_samples in (512, 1024, 2048):
        batch, labels = random_batch(n_samples, SIZES[n_samples], dim)
        triplets = random_triplets(labels, n_samples) if case.triplets else None
        steps[n_samples] = ours(case, batch, labels, triplets, int(labels.max()) + 1)
    row = {'loss': name, 'dim': dim}
    for n_samples, seconds in median_times({n: steps[n] for n in (512, 1024)}, REPEATS, BUDGET).items():
        row[f'seconds_{n_samples}'] = seconds
    return row | {f'bytes_{n_samples}': peak_memory(function) for n_samples, function in steps.items()}


def number(value, scale, digits=2):
    return '-' if value is None else f'{value * scale:,.{digits}f}'


def ratio(row, unit, first='ours', second='theirs'):
    first, second = row[f'{first}_{unit}'], row[f'{second}_{unit}']
    return None if second is None else first / second


def comparison_table(rows):
    heads = ['loss', 'batch', 'dim', 'classes', 'ms', 'counterpart', 'ratio', 'faster', 'MB', 'counterpart', 'ratio']
    cells = []
    for row in rows:
        once = '*' if row['theirs_s'] is not None and row['batch'] >= CASES[row['loss']].once else ''
        faster = row['theirs_s'] and row['theirs_s'] / row['ours_s']
        cells.append([row['loss'], f'{row["batch"]:,}', str(row['dim']), f'{row["classes"]:,}',
                      number(row['ours_s'], 1e3), number(row['theirs_s'], 1e3) + once,
                      number(ratio(row, 's'), 1), number(faster, 1, 1),
                      number(row['ours_bytes'], 1e-6, 1), number(row['theirs_bytes'], 1e-6, 1) + once,
                      number(ratio(row, 'bytes'), 1)])
    return table(heads, cells)


def growth_table(rows):
    heads = ['loss', 'ms at 512', 'at 1,024', 'growth', 'MB at 512', 'at 1,024', 'growth', 'at 2,048']
    return table(heads, [[row['loss'], number(row['seconds_512'], 1e3), number(row['seconds_1024'], 1e3),
                          number(row['seconds_1024'] / row['seconds_512'], 1), number(row['bytes_512'], 1e-6, 1),
                          number(row['bytes_1024'], 1e-6, 1), number(row['bytes_1024'] / row['bytes_512'], 1),
                          number(row['bytes_2048'], 1e-6, 1)] for row in rows])


def left_out(names, sizes, dims):
    """A line for each reason why counterparts were not called."""
    reasons = {}
    for name in names:
        n_samples, area, reason = CASES[name].most
        for size in sizes:
            missing = [dim for dim in dims if size > n_samples or size * dim > area]
            if CASES[name].counterpart and missing:
                where = f'{name} at {size:,}' + (f' x {missing[0]}' if missing != dims else '')
                reasons.setdefault(reason, []).append(where)
    return [f'- {reason}: {"; ".join(where)}' for reason, where in reasons.items()]


def short():
    """Eight losses at 112 samples, against the library's."""
    torch.set_num_threads(1)
    for name in ('triplet, given', 'margin, given', 'contrastive, all', 'multisimilarity', 'npair, pairs',
                 'softtriplet', 'proxyanchor', 'arcface'):
        row = compare(name, 112, 128)
        yield Row(f'loss {name}, 112 x 128; pytorch-metric-learning', row['ours_s'], row['theirs_s'], 1.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--losses', nargs='+', default=list(CRITERIA), metavar='NAME', choices=list(CRITERIA),
                        help=', '.join(CRITERIA))
    parser.add_argument('--sizes', nargs='+', type=int, default=list(TABLE), choices=list(SIZES), help='batch sizes')
    parser.add_argument('--dims', nargs='+', type=int, default=list(DIMS), help='dimensions of the embeddings')
    parser.add_argument('--classes', nargs='+', type=int, metavar='N',
                        help='numbers of training classes, for losses with class weights, with batches of 112')
    parser.add_argument('--growth', action='store_true', help='growth of the losses alone, from 512 to 1,024 samples')
    parser.add_argument('--json', metavar='FILE', help='also write the rows to this file')
    opt = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name, case in CASES.items() if case.loss in opt.losses]
    print(f'torch {torch.__version__}, pytorch-metric-learning {version("pytorch-metric-learning")}, one thread, '
          f'{processor()}, {os.cpu_count()} cores; median processor time, forward and backward')
    if opt.growth:
        rows = [grow(name) for name in tqdm(names, desc='losses', disable=None)]
        print(growth_table(rows))
    else:
        if opt.classes:
            modules = {name: CRITERIA[CASES[name].loss] for name in names}
            names = [name for name in names if modules[name].REQUIRES_OPTIM and not modules[name].REQUIRES_BATCHMINER]
            opt.sizes = [112]
        points = [(name, size, dim, n_classes) for name in names for size in opt.sizes for dim in opt.dims
                  for n_classes in opt.classes or [None]]
        rows = [compare(*point) for point in tqdm(points, desc='comparisons', disable=None)]
        print(comparison_table(rows), '* called once', *left_out(names, opt.sizes, opt.dims), sep='\n')
    if opt.json:
        with open(opt.json, 'w') as file:
            json.dump(rows, file, indent=1)


if __name__ == '__main__':
    main()
