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

from records import columns
from records.columns import Column
from reports import final_rows, groups, runs
from reports.selection import Rule
from studies import class_values, photos
from utilities import errors
from utilities.errors import UserError
from utilities.files import read_csv, write_csv

# The metrics that all epochs have in the rows. The last epoch has whatever was evaluated.
METRICS = {'finetuned': ('e_recall@1', 'map_at_r', 'val_e_recall@1', 'val_map_at_r', 'train_rho_spectrum@1',
                         'train_rho_spectrum@2', 'train_dists@intra_over_inter'),
           'frozen': ('e_recall@1', 'map_at_r', 'val_e_recall@1', 'val_map_at_r')}
LAST_EPOCH = Rule('last', Column('test', 'map_at_r'), False)


def add_rows(file, new, metrics):
    """Writes the rows of the Runs in `new` beside those in the file. Returns the number of added Runs."""
    known = final_rows.read(file)
    keys = {(run.group, run.seed) for run in known}
    added = [run for run in new if (run.group, run.seed) not in keys]
    if added:
        grouped, _ = groups.group_runs([*known, *added])               # its notes are on seeds that are still missing
        final_rows.write(file, grouped, LAST_EPOCH, tuple(map(columns.asked_for, metrics)))
    return len(added)


def add_values_of_classes(file, new):
    """Writes a line of class_values for each of the Runs in `new` that has none in the file, or notes why it cannot."""
    lines = read_csv(file)
    known = {(line['group'], int(line['seed'])) for line in lines}
    for run in tqdm([run for run in new if (run.group, run.seed) not in known], 'networks', disable=None):
        try:
            lines.append(class_values.csv_line(run))
        except UserError as problem:
            print(f'Note: no values of classes: {problem}', file=sys.stderr)
        write_csv(file, lines)


def main(arguments=None, rows=photos.ROWS):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folders', nargs='+', type=Path, metavar='FOLDER', help='it has run folders, at any depth')
    opt = parser.parse_args(arguments)
    found, notes = groups.those_that_count(runs.below(opt.folders, ()), with_unfinished=False)
    for note in notes:
        print(f'Note: {note}', file=sys.stderr)
    if not any(run.group.startswith(tuple(photos.TIERS.values())) for run in found):
        raise UserError(f'{" ".join(map(str, opt.folders))}: no finished runs of the scripts in studies/')
    for tier, prefix in photos.TIERS.items():
        in_tier = [run for run in found if run.group.startswith(f'{prefix}_')]
        file = rows / f'{prefix.lower()}.csv'
        print(f'{file}: {add_rows(file, in_tier, METRICS[tier])} runs added')
        add_values_of_classes(photos.class_file(file), in_tier)


if __name__ == '__main__':
    sys.exit(errors.exit_code('studies.add_runs', main))
