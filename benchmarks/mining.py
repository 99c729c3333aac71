"""
Processor time and memory of the miners, next to pytorch-metric-learning's miners for the same rule.

python -m benchmarks.mining
"""
import functools
import sys
import warnings

import torch

import batch_mining
import parameters
from benchmarks.measure import median_times, peak_memory
from records.run_folder import processor
from utilities import errors, libraries
from utilities.text_tables import markdown

SHAPES = ((56, 2), (128, 4), (512, 4))                     # classes, samples of each
DIMENSIONS = (128, 512)
REPEATS = 31                                               # rounds of a comparison
BUDGET = 40                                                # seconds of it


def counterparts():
    """{miner: a miner of pytorch-metric-learning}"""
    libraries.require_library('the comparison of miners')
    from pytorch_metric_learning import distances, miners
    euclidean = distances.LpDistance()
    squared = distances.LpDistance(power=2)
    return {'distance': miners.DistanceWeightedMiner(cutoff=0.5, nonzero_loss_cutoff=2.0),
            'semihard': miners.TripletMarginMiner(0.2, 'semihard', distance=squared),
            'hard': miners.BatchHardMiner(distance=euclidean),
            'easyhard': miners.BatchEasyHardMiner('easy', 'semihard', distance=euclidean),
            'multisimilarity': miners.MultiSimilarityMiner(epsilon=0.1)}


def measure(n_classes, n_samples, dim):
    """Yields the cells of a row for each miner."""
    torch.manual_seed(0)
    labels = torch.arange(n_classes).repeat_interleave(n_samples)
    batch = torch.nn.functional.normalize(torch.randn(len(labels), dim), dim=1)
    theirs = counterparts()
    for name in (name for name in batch_mining.BATCHMINERS if name != 'none'):
        miners = {'ours': batch_mining.select(parameters.build().parse_args(['--batch_mining', name]))}
        if name in theirs:
            miners['theirs'] = theirs[name]
        calls = {side: functools.partial(miner, batch, labels) for side, miner in miners.items()}
        seconds = median_times(calls, REPEATS, BUDGET)
        cells = {side: [f'{seconds[side] * 1e3:.2f}', f'{peak_memory(call) / 1e6:.1f}'] for side, call in calls.items()}
        compared = ['', '', '', '']
        if name in theirs:
            ratio = f'{seconds["theirs"] / seconds["ours"]:.1f}'
            compared = [type(theirs[name]).__name__, *cells['theirs'], ratio]
        yield [name, len(labels), dim, *cells['ours'], *compared]


def main():
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')                        # the other library warns of divisions by zero
    print(f'torch {torch.__version__}, {processor()}, one thread, medians of processor time')
    rows = [row for shape in SHAPES for dim in DIMENSIONS for row in measure(*shape, dim)]
    print(markdown(['miner', 'batch', 'D', 'ms', 'MB', 'pytorch-metric-learning', 'ms', 'MB', 'ratio of times'], rows))


if __name__ == '__main__':
    sys.exit(errors.exit_code('benchmarks.mining', main))
