"""
The MAP@R of each test class in the runs of the study on photos, of the network in the last checkpoint: for intervals
over test classes.
"""
import contextlib
import io
from pathlib import Path

import numpy as np

import configuration
import evaluation
import parts
from evaluation import rank_metrics, ranking
from records import reading
from utilities import device
from utilities.errors import UserError

TOLERANCE = 1e-5                             # between the mean over images here and the value in the records of the run


def class_means(part):
    """(MAP@R, number of queries) per class [C] of the Embedded test split, without the classes of one image."""
    search = part.search()
    found = np.full(len(part.embeddings), np.nan)
    for queries, ranks in ranking.positive_ranks(search, search.n_positives):
        found[search.query_index[queries]] = rank_metrics.map_at_r(ranks, search.n_positives[queries])
    judged = ~np.isnan(found)
    _, places, sizes = np.unique(part.images.labels[judged], return_inverse=True, return_counts=True)
    return np.bincount(places, found[judged]) / sizes, sizes


def csv_line(run):
    """The line of a Run: class_means() of its network. Raises UserError where their mean is not its MAP@R."""
    opt = configuration.parse(['--evaluate', str(run.where), '--device', 'cpu'])
    opt.device = device.select(opt)
    with contextlib.redirect_stdout(io.StringIO()):
        built = parts.restore(opt, opt.evaluate)
        parts.keep_evaluated_features(opt, built)
        embedded = evaluation.embed_splits(opt, built.model, built.data, ['test'], built.criterion)
    classes, sizes = class_means(embedded['test'])
    mean = classes @ sizes / sizes.sum()
    recorded = run.rows[-1]['test_map_at_r']
    if not abs(mean - recorded) <= TOLERANCE:                # nan is refused as well
        raise UserError(f'{run.where}: MAP@R is {mean:.6f} here, and {recorded:.6f} in its records')
    return {'group': run.group, 'seed': run.seed, 'sizes': ' '.join(map(str, sizes)),
            'map_at_r': ' '.join(f'{value:.4f}' for value in classes)}


def read(file):
    """{(group, seed): (MAP@R per class [C], numbers of queries [C])} of a file that studies.add_runs wrote."""
    found = {}
    for number, line in enumerate(reading.read_texts(Path(file)), start=2):
        try:
            arrays = [np.array(line[name].split(), float) for name in ('map_at_r', 'sizes')]
            key = line['group'], int(line['seed'])
        except (KeyError, ValueError):
            raise UserError(f'{file}, line {number}: not a line of python -m studies.add_runs') from None
        if len(arrays[0]) != len(arrays[1]):
            raise UserError(f'{file}, line {number}: {len(arrays[0])} values for {len(arrays[1])} classes')
        found[key] = tuple(arrays)
    return found
