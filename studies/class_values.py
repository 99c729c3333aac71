"""
The MAP@R of each test class in the runs of the study on photos, of the network in the last checkpoint: for intervals
over test classes.

python -m studies.class_values RUN_FOLDER ... --file studies/rows/photos_classes.csv

Runs already in the file are skipped, so that an interrupted command can be repeated.
"""
import argparse
import contextlib
import io
import re
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

import configuration
import evaluation
import parts
from evaluation import rank_metrics, ranking
from records import reading
from utilities import device, errors
from utilities.errors import UserError
from utilities.files import read_csv, write_csv

FOLDER = re.compile(r'(?P<group>.+)_s(?P<seed>\d+)')
TOLERANCE = 1e-5                             # between the mean over images here and the value in the records of the run


def class_means(part):
    """(MAP@R per test class [C], number of queries per class [C]) of the Embedded test split, by class number."""
    search, found = part.search(), np.full(len(part.images), np.nan)
    for queries, ranks in ranking.positive_ranks(search, search.n_positives):
        found[search.query_index[queries]] = rank_metrics.map_at_r(ranks, search.n_positives[queries])
    labels, judged = part.images.labels, ~np.isnan(found)
    sizes = np.bincount(labels[judged])
    return np.bincount(labels[judged], found[judged]) / sizes, sizes


def csv_line(folder, group, seed):
    """
    The line of the run in a folder: class_means() of its network. Raises UserError where their mean is not the MAP@R in
    its log.csv.
    """
    opt = configuration.parse(['--evaluate', str(folder), '--device', 'cpu'])
    opt.device = device.select(opt)
    built = parts.restore(opt, opt.evaluate)
    parts.keep_evaluated_features(opt, built)
    embedded = evaluation.embed_splits(opt, built.model, built.data, ['test'], built.criterion)
    classes, sizes = class_means(embedded['test'])
    mean = classes @ sizes / sizes.sum()
    recorded = reading.read(folder).rows[-1]['test_map_at_r']
    if abs(mean - recorded) > TOLERANCE:
        raise UserError(f'{folder}: MAP@R is {mean:.6f} here, and {recorded:.6f} in its records')
    return {'group': group, 'seed': seed, 'sizes': ' '.join(map(str, sizes)),
            'map_at_r': ' '.join(f'{value:.4f}' for value in classes)}


def read(file):
    """{(group, seed): (MAP@R per class [C], numbers of queries [C])} of a file that main() wrote."""
    found = {}
    for number, line in enumerate(read_csv(Path(file)), start=2):
        try:
            arrays = [np.array(line[name].split(), float) for name in ('map_at_r', 'sizes')]
            key = line['group'], int(line['seed'])
        except (KeyError, AttributeError, ValueError):
            raise UserError(f'{file}, line {number}: not a line of python -m studies.class_values') from None
        if len(arrays[0]) != len(arrays[1]):
            raise UserError(f'{file}, line {number}: {len(arrays[0])} values for {len(arrays[1])} classes')
        found[key] = tuple(arrays)
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('runs', nargs='+', type=Path, metavar='RUN_FOLDER')
    parser.add_argument('--file', type=Path, required=True, help='the CSV file: a line per run')
    opt = parser.parse_args(arguments)
    lines = read_csv(opt.file)
    known = {(line['group'], int(line['seed'])) for line in lines}
    for folder in tqdm(opt.runs, 'networks', disable=None):
        name = FOLDER.fullmatch(folder.name)
        if not name:
            raise UserError(f'{folder}: not the folder of a run, <group>_s<seed>')
        if (name['group'], int(name['seed'])) not in known:
            with contextlib.redirect_stdout(io.StringIO()):
                lines.append(csv_line(folder, name['group'], int(name['seed'])))
            write_csv(opt.file, lines)
    print(opt.file)


if __name__ == '__main__':
    with errors.reported('studies.class_values') as end:
        main()
    sys.exit(end.code)
