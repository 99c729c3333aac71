"""
The settings that the searches of the claims found, as files in studies/settings that Claims_Runs.sh reads: lines
'HALF NAME FLAG...'.

python -m studies.settings candidates --studies Studies            # two best trials of each control's search
python -m studies.settings best --runs Candidates/omniglot         # the candidate that is best after 24 epochs
python -m studies.settings grids --studies Studies                 # best gamma and best probability of rho_distance

Lines of other searches, which are not in the folder, stay in the file.
"""
import argparse
import re
import shlex
import sys
from pathlib import Path

import pandas as pd

from records import reading
from utilities import errors
from utilities.errors import UserError
from utilities.files import read_csv, write_text

FOLDER = Path(__file__).parent / 'settings'
STUDY = re.compile(r'Claims_Omniglot_([AB])_(.+)')
CANDIDATE = re.compile(r'Candidates_Omniglot_([AB])_(.+)_(\d)_fold\d')
SCORE, METRIC = 'map_at_r', 'val_map_at_r'                    # names in trials.csv, and in the records of a run
N_CANDIDATES = 2
NO_FLAGS = ('trial', 'state', SCORE, 'best_epochs', 'seconds', 'reason')


def read(file):
    """{(half, name): [flag, ...]} of a file that main() wrote."""
    lines = (line.split() for line in file.read_text(encoding='utf-8').splitlines())
    return {(half, name): flags for half, name, *flags in lines}


def best_trials(folder, n):
    """The flags of the `n` best finished trials of a search, the best first: [[--flag=value, ...], ...]."""
    rows = [row for row in read_csv(folder / 'trials.csv') if row['state'] == 'complete']
    if not rows:
        raise UserError(f'{folder}: no trial has finished')
    rows.sort(key=lambda row: -float(row[SCORE]))
    return [[f'--{name}={value}' for name, value in row.items() if name not in NO_FLAGS and value] for row in rows[:n]]


def search_lines(studies, is_grid, n):
    """Lines of the best trials of the searches in the folder `studies`, of grids or of controls."""
    lines = []
    for folder in sorted(Path(studies).glob('Claims_Omniglot_*')):
        half, name = STUDY.fullmatch(folder.name).groups()
        if name.endswith(('_rho', '_gamma')) == is_grid:
            for place, flags in enumerate(best_trials(folder, n), start=1):
                lines.append([half, name if n == 1 else f'{name}_{place}', *flags])
    if not lines:
        raise UserError(f'{studies}: it has no searches of studies/Claims_Searches.sh')
    return lines


def candidate_lines(runs):
    """Lines of the candidates whose mean over folds of MAP@R on validation classes at the last epoch is the highest."""
    file = FOLDER / 'candidates.txt'
    if not file.exists():
        raise UserError(f'{file}: missing; python -m studies.settings candidates writes it')
    folders = filter(reading.is_run_folder, sorted(Path(runs).glob('Candidates_Omniglot_*')))
    folds = pd.DataFrame([(*CANDIDATE.fullmatch(run.group).groups(), run.rows[-1][METRIC])
                          for run in map(reading.read, folders)], columns=['half', 'name', 'place', 'value'])
    if folds.empty:
        raise UserError(f'{runs}: it has no runs of SECTIONS=candidates ./studies/Claims_Runs.sh')
    known, lines = read(file), []
    for (half, name), found in folds.groupby(['half', 'name'], sort=False):
        by_place = found.groupby('place').value
        if {*by_place.size()} != {2}:
            raise UserError(f'{runs}: expected two folds of each candidate of {name}, half {half}')
        lines.append([half, name, *known[half, f'{name}_{by_place.mean().idxmax()}']])
    return lines


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('kind', choices=['candidates', 'best', 'grids'], help='the file that is written')
    parser.add_argument('--studies', default='Studies', help='folder of the searches')
    parser.add_argument('--runs', default='Candidates/omniglot', help='folder of the runs of the candidates')
    opt = parser.parse_args(arguments)
    if opt.kind == 'best':
        lines = candidate_lines(opt.runs)
    else:
        lines = search_lines(opt.studies, opt.kind == 'grids', 1 if opt.kind == 'grids' else N_CANDIDATES)
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f'{opt.kind}.txt'
    known = read(file) if file.exists() else {}
    known |= {(half, name): flags for half, name, *flags in lines}
    write_text(file, ''.join(f'{shlex.join([*key, *known[key]])}\n' for key in sorted(known)))
    print(file)


if __name__ == '__main__':
    with errors.reported('studies.settings') as end:
        main()
    sys.exit(end.code)
