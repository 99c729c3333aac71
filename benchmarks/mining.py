"""
Processor time and memory of the miners, next to pytorch-metric-learning's miners for the same rule.

python -m benchmarks.mining [--json FILE]
"""
import argparse
import functools
import json
import sys
import warnings

import torch

import batch_mining
import parameters
from benchmarks import Row
from benchmarks.measure import median_times, peak_memory
from utilities import pml
from utilities.loss_sums import triplets_from_masks
from utilities.machine import processor

SHAPES = ((56, 2), (128, 4), (512, 4))                     # classes, samples of each
DIMENSIONS = (128, 512)
AS_TRIPLETS = 'all, as triplets'                           # for losses that take no masks
REPEATS, BUDGET = 31, 40                                    # rounds, seconds of a comparison


def competitors():
    """{miner: a miner of pytorch-metric-learning, or a function in its place}"""
    pml.require_library('the comparison of miners')
    from pytorch_metric_learning import distances, miners
    from pytorch_metric_learning.utils import loss_and_miner_utils

    def get_all_triplets_indices(batch, labels):
        return loss_and_miner_utils.get_all_triplets_indices(labels)

    euclidean, squared = distances.LpDistance(), distances.LpDistance(power=2)
    return {'distance': miners.DistanceWeightedMiner(cutoff=0.5, nonzero_loss_cutoff=2.0),
            'semihard': miners.TripletMarginMiner(0.2, 'semihard', distance=squared),
            'hard': miners.BatchHardMiner(distance=euclidean),
            'easyhard': miners.BatchEasyHardMiner('easy', 'semihard', distance=euclidean),
            'multisimilarity': miners.MultiSimilarityMiner(epsilon=0.1), AS_TRIPLETS: get_all_triplets_indices}


def build(name):
    if name == AS_TRIPLETS:
        return lambda batch, labels: triplets_from_masks(*batch_mining.all_pairs.all_pairs(labels))
    return batch_mining.select(parameters.build().parse_args(['--batch_mining', name, '--loss', 'triplet']))


def measure(n_classes, n_samples, dim, theirs):
    """Rows of a table: {miner, batch, dim, seconds, bytes}, with the other library's and the ratio if it has one."""
    torch.manual_seed(0)
    labels = torch.arange(n_classes).repeat_interleave(n_samples)
    batch = torch.nn.functional.normalize(torch.randn(len(labels), dim), dim=1)
    for name in [*(name for name in batch_mining.BATCHMINERS if name != 'none'), AS_TRIPLETS]:
        miners = {'ours': build(name)} | ({'pml': theirs[name]} if name in theirs else {})
        functions = {key: functools.partial(miner, batch, labels) for key, miner in miners.items()}
        times = median_times(functions, REPEATS, BUDGET)
        memory = {key: peak_memory(function) for key, function in functions.items()}
        row = {'miner': name, 'batch': len(labels), 'dim': dim, 'seconds': times['ours'], 'bytes': memory['ours']}
        if name in theirs:
            row |= {'pml': getattr(theirs[name], '__name__', type(theirs[name]).__name__), 'pml_seconds': times['pml'],
                    'pml_bytes': memory['pml'], 'ratio': times['pml'] / times['ours']}
        yield row


def short():
    """The miners that have a counterpart, at 112 samples."""
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')
    for row in measure(*SHAPES[0], DIMENSIONS[0], competitors()):
        if 'pml' in row:
            yield Row(f'miner {row["miner"]}, 112 x 128; {row["pml"]}', row['seconds'], row['pml_seconds'], 1.0)


def main(arguments):
    parser = argparse.ArgumentParser(prog='benchmarks.mining', description=__doc__)
    parser.add_argument('--json', metavar='FILE', help='also write the rows here')
    parser.add_argument('--batches', nargs='+', type=int, default=[n * k for n, k in SHAPES], help='batch sizes')
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')                        # the other library warns of divisions by zero
    theirs, rows = competitors(), []
    print(f'torch {torch.__version__}, {processor()}, one thread, medians of processor time')
    print(f'{"miner":<16}{"batch":>6}{"dim":>5}{"ms":>10}{"MB":>8}   {"pytorch-metric-learning":<23}{"ms":>11}{"MB":>9}'
          f'{"ratio":>8}')
    for n_classes, n_samples in SHAPES:
        if n_classes * n_samples not in options.batches:
            continue
        for dim in DIMENSIONS:
            for row in measure(n_classes, n_samples, dim, theirs):
                rows.append(row)
                line = (f'{row["miner"]:<16}{row["batch"]:>6}{row["dim"]:>5}{row["seconds"] * 1e3:>10.2f}'
                        f'{row["bytes"] / 1e6:>8.1f}')
                if 'pml' in row:
                    line += (f'   {row["pml"]:<23}{row["pml_seconds"] * 1e3:>11.2f}{row["pml_bytes"] / 1e6:>9.1f}'
                             f'{row["ratio"]:>8.1f}')
                print(line, flush=True)
    if options.json:
        with open(options.json, 'w', encoding='utf-8') as file:
            json.dump({'torch': torch.__version__, 'rows': rows}, file, indent=1)


if __name__ == '__main__':
    main(sys.argv[1:])
