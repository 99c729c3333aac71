"""
Number of operations that a loss, with its miner, launches on a device in one step, forward and backward, beside the
same loss of pytorch-metric-learning. On a GPU, each costs the host some microseconds, whatever the size of the batch.

The number includes all calls of torch's operators except views and operators that only allocate memory or describe a
tensor. An operator counts once, even if it launches several kernels; an operator that calls other operators of torch
counts as many times as these (COMPOSED). No GPU is needed.

python -m benchmarks.operations [--losses NAME ...] [--size 112]
"""
import argparse

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from batch_mining.random_triplets import random_triplets
from benchmarks.losses import CASES, SIZES, ours, random_batch, theirs
from benchmarks.measure import table

TARGET = 1.1
ALLOCATE = {'empty', 'empty_like', 'empty_strided', 'new_empty', 'new_empty_strided', 'lift_fresh', 'detach',
            '_local_scalar_dense', 'is_same_size', '_unsafe_view', 'promote_types',
            'scalar_tensor'}                                                 # on the host
# operators that call others where a dispatch mode does not see them, with the number of those that compute
COMPOSED = {'_euclidean_dist': 12,       # pow, sum and ones_like of both sides; mul, cat twice, mm, clamp_min_, sqrt_
            'logsumexp': 9}              # amax, abs, eq, masked_fill_, sub, exp_, sum, log_, add_


class Launches(TorchDispatchMode):
    """Counts the operators of the block in `names`, {name: number}, and those that they call."""

    def __init__(self):
        super().__init__()
        self.names = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if not function.is_view and name not in ALLOCATE:
            self.names[name] = self.names.get(name, 0) + COMPOSED.get(name, 1)
        return function(*args, **kwargs or {})


def launches(step):
    """{name of an operator: number} of the second call of a step; the first may prepare what is kept."""
    step()
    with Launches() as counter:
        step()
    return counter.names


def compare(name, n_samples=112, dim=128):
    """(number of operations of ours, of the library's or None) for a Case of benchmarks.losses."""
    case = CASES[name]
    batch, labels = random_batch(n_samples, SIZES[n_samples], dim)
    torch.manual_seed(0)
    triplets = random_triplets(labels, n_samples) if case.triplets else None
    n_classes = int(labels.max()) + 1
    counted = [step and sum(launches(step).values()) for step in (
        ours(case, batch, labels, triplets, n_classes), theirs(case, batch, labels, triplets, n_classes))]
    return tuple(counted)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(case.loss for case in CASES.values()))
    parser.add_argument('--losses', nargs='+', default=names, metavar='NAME', choices=names, help=', '.join(names))
    parser.add_argument('--size', type=int, default=112, choices=list(SIZES), help='batch size')
    opt = parser.parse_args()
    rows = []
    for name, case in CASES.items():
        if case.loss in opt.losses:
            own, peer = compare(name, opt.size)
            ratio = own / peer if peer else None
            rows.append([name, str(own), '-' if peer is None else str(peer), '-' if ratio is None else f'{ratio:.2f}',
                         '' if ratio is None else 'yes' if ratio <= TARGET else 'no'])
    print(f'torch {torch.__version__}; {opt.size} x 128, forward and backward')
    print(table(['loss', 'operations', 'pytorch-metric-learning', 'ratio', f'at most {TARGET}'], rows))


if __name__ == '__main__':
    main()
