"""
Adds the finished runs of the study on photos to studies/rows: the rows of all their epochs, and the MAP@R of each test
class with the network of the last checkpoint, for intervals over test classes.

python -m studies.add_runs Training_Results

Runs that are already there are skipped, so that an interrupted command can be repeated.
"""
import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from records import columns, reading
from records.columns import Column
from reports import final_rows, groups, runs
from reports.selection import Rule
from studies import class_values, photos
from utilities import errors
from utilities.errors import UserError
from utilities.files import read_csv, write_csv

METRICS = {'finetuned': ('e_recall@1', 'map_at_r', 'val_e_recall@1', 'val_map_at_r', 'train_rho_spectrum@1',
                         'train_rho_spectrum@2', 'train_dists@intra_over_inter'),
           'frozen': ('e_recall@1', 'map_at_r', 'val_e_recall@1', 'val_map_at_r')}         # of epochs but the last
LAST_EPOCH = Rule('last', Column('test', 'map_at_r'), False)


def add_rows(file, new, metrics):
    """Writes the rows of the Runs in `new` beside those in the file. Returns the number of added Runs."""
    known = final_rows.read(file)
    keys = {(run.group, run.seed) for run in known}
    added = [run for run in new if (run.group, run.seed) not in keys]
    if added:
        grouped, _ = groups.group_runs([*known, *added])
        final_rows.write(file, grouped, LAST_EPOCH, tuple(map(columns.asked_for, metrics)))
    return len(added)


def add_values_of_classes(file, new):
    """Writes a line of class_values for each of the Runs in `new` that has none in the file."""
    lines = read_csv(file)
    known = {(line['group'], int(line['seed'])) for line in lines}
    for run in tqdm([run for run in new if (run.group, run.seed) not in known], 'networks', disable=None):
        lines.append(class_values.csv_line(run))
        write_csv(file, lines)


def main(arguments=None, rows=photos.ROWS):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folders', nargs='+', type=Path, metavar='FOLDER', help='it has run folders, at any depth')
    opt = parser.parse_args(arguments)
    found = [run for run in runs.below(opt.folders, ()) if run.state == reading.FINISHED]
    n_of_study = 0
    for tier, prefix in photos.TIERS.items():
        of_tier = [run for run in found if run.group.startswith(f'{prefix}_')]
        n_of_study += len(of_tier)
        file = rows / f'{prefix.lower()}.csv'
        print(f'{file}: {add_rows(file, of_tier, METRICS[tier])} runs added')
        add_values_of_classes(photos.of_classes(file), of_tier)
    if not n_of_study:
        raise UserError(f'{" ".join(map(str, opt.folders))}: no finished runs of the scripts in studies/')


if __name__ == '__main__':
    with errors.reported('studies.add_runs') as end:
        main()
    sys.exit(end.code)
