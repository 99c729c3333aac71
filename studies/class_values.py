"""
The MAP@R of each test class in the claims' runs, for intervals over test classes: of the network in the last
checkpoint; for folds (<group>_fold<k>_s<seed>), of their concatenated networks, as in Evaluate_Ensemble.py.

python -m studies.class_values RUN_FOLDER ... [--file FILE]

Runs already in FILE are skipped, so that an interrupted command can be repeated.
"""
import argparse
import contextlib
import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from tqdm import tqdm

import configuration
import evaluation
import parts
from evaluation import ranking, retrieval
from records import reading
from reports import ensemble_evaluation, ensembles, folds
from utilities import device, errors
from utilities.errors import UserError
from utilities.files import read_csv, write_csv

FILE = Path(__file__).parent / 'rows' / 'claims_classes.csv'
FOLDS = re.compile(r'(?P<group>.+?)(_fold(?P<fold>\d+))?_s(?P<seed>\d+)')
TOLERANCE = 1e-5                             # between the mean over images here and the value in the records of the run


def class_means(part):
    """(MAP@R per test class [C], number of queries per class [C]) of the Embedded test split, by class number."""
    search, found = part.search(), np.full(len(part.images), np.nan)
    for queries, ranks in ranking.positive_ranks(search, search.n_positives):
        found[search.query_index[queries]] = retrieval.map_at_r(ranks, search.n_positives[queries])
    labels, judged = part.images.labels, ~np.isnan(found)
    sizes = np.bincount(labels[judged])
    return np.bincount(labels[judged], found[judged]) / sizes, sizes


def run_values(folder):
    """class_means() of the network in a run folder, and the MAP@R that its log.csv has."""
    opt = configuration.parse(['--evaluate', str(folder), '--device', 'cpu'])
    opt.device = device.select(opt)
    built = parts.restore(opt, opt.evaluate)
    part = evaluation.embed_splits(opt, built.model, built.data, ['test'], built.criterion)['test']
    return *class_means(part), reading.read(folder).rows[-1]['test_map_at_r']


def fold_values(folders):
    """class_means() of the networks of several folds, concatenated, and the MAP@R of Evaluate_Ensemble.py."""
    machine = dict.fromkeys(ensemble_evaluation.MACHINE) | {'device': 'cpu'}           # the others: as in the records
    opt = SimpleNamespace(**machine, evaluation_metrics=['map_at_r'], pca=0)
    ensemble, = folds.gather(map(str, folders))
    if len(ensemble.members) != ensemble.n_expected:
        raise UserError(f'{ensemble}: {ensemble.n_folds_of} folds')
    members = []
    for member in ensemble.members:
        own, built = ensemble_evaluation.network(opt, member, 'trained')
        members.append(ensembles.embed_member(own, built.model, built.data))
    return *class_means(ensembles.as_one(own, members)), ensembles.concatenated(own, members)['test_map_at_r']


def csv_line(group, seed, folders):
    is_ensemble = FOLDS.fullmatch(folders[0].name)['fold'] is not None
    classes, sizes, recorded = fold_values(folders) if is_ensemble else run_values(*folders)
    mean = classes @ sizes / sizes.sum()
    if abs(mean - recorded) > TOLERANCE:
        raise UserError(f'{folders[0]}: MAP@R is {mean:.6f} here, and {recorded:.6f} in its records')
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
    parser.add_argument('--file', type=Path, default=FILE, help='the CSV file: a line per run')
    opt = parser.parse_args(arguments)
    lines = read_csv(opt.file) if opt.file.exists() else []
    known = {(line['group'], int(line['seed'])) for line in lines}
    found = {}
    for folder in opt.runs:
        if not (name := FOLDS.fullmatch(folder.name)):
            raise UserError(f'{folder}: not the folder of a run of studies/Claims_Runs.sh, <group>_s<seed>')
        found.setdefault((name['group'], int(name['seed'])), []).append(folder)
    for key, folders in tqdm(found.items(), 'networks', disable=None):
        if key not in known:
            with contextlib.redirect_stdout(io.StringIO()):
                lines.append(csv_line(*key, folders))
            write_csv(opt.file, lines)
    print(opt.file)


if __name__ == '__main__':
    with errors.reported('studies.class_values') as end:
        main()
    sys.exit(end.code)
