"""
The MAP@R of each test class in the claims' runs, from their last checkpoints, for intervals over test classes.

python -m studies.class_values RUN_FOLDER ... [--file FILE]

Runs already in FILE are skipped, so that an interrupted command can be repeated.
"""
import argparse
import contextlib
import io
import re
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

import evaluation
import parameters
import parts
from evaluation import ranking, retrieval
from records import reading
from utilities import device, errors
from utilities.errors import UserError
from utilities.files import read_csv, write_csv

FILE = Path(__file__).parent / 'rows' / 'claims_classes.csv'
TOLERANCE = 1e-5                                 # between the mean over images here and the value in the run's log.csv


def values_of(folder):
    """(MAP@R per test class [C], number of queries per class [C]) of the network in a run folder, by class number."""
    opt = parameters.parse(['--evaluate', str(folder), '--device', 'cpu'])
    opt.device = device.select(opt)
    built = parts.restore(opt, opt.evaluate)
    test = evaluation.embed_splits(opt, built.model, built.data, ['test'], built.criterion)['test']
    search, found = test.search(), np.full(len(test.images), np.nan)
    for queries, ranks in ranking.positive_ranks(search, search.n_positives):
        found[search.query_index[queries]] = retrieval.map_at_r(ranks, search.n_positives[queries])
    labels, judged = test.images.labels, ~np.isnan(found)
    sizes = np.bincount(labels[judged])
    return np.bincount(labels[judged], found[judged]) / sizes, sizes


def line_of(folder):
    run, (classes, sizes) = reading.read(folder), values_of(folder)
    mean, recorded = classes @ sizes / sizes.sum(), run.rows[-1]['test_map_at_r']
    if abs(mean - recorded) > TOLERANCE:
        raise UserError(f'{folder}: MAP@R is {mean:.6f} here, and {recorded:.6f} in its log.csv')
    return {'group': run.group, 'seed': run.seed, 'sizes': ' '.join(map(str, sizes)),
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
    parser.add_argument('--file', type=Path, default=FILE, help='the CSV file: a line per run')
    opt = parser.parse_args(arguments)
    lines = read_csv(opt.file) if opt.file.exists() else []
    known = {(line['group'], int(line['seed'])) for line in lines}
    for folder in tqdm(opt.runs, 'networks', disable=None):
        if not (name := re.fullmatch(r'(.+)_s(\d+)', folder.name)):
            raise UserError(f'{folder}: not the folder of a run of studies/Claims_Runs.sh, <group>_s<seed>')
        if (name[1], int(name[2])) not in known:
            with contextlib.redirect_stdout(io.StringIO()):
                lines.append(line_of(folder))
            write_csv(opt.file, lines)
    print(opt.file)


if __name__ == '__main__':
    with errors.reported('studies.class_values') as end:
        main()
    sys.exit(end.code)
