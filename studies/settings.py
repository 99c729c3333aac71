"""
The settings that the searches of Frozen_Searches.sh found, as lines 'SET LOSS FLAG...' of studies/settings/frozen.txt,
which Frozen_Runs.sh reads.

python -m studies.settings --studies Studies

Lines of other searches, which are not in the folder, stay in the file.
"""
import argparse
import re
import sys
from pathlib import Path

from utilities import errors
from utilities.errors import UserError
from utilities.files import read_csv, write_text

FILE = Path(__file__).parent / 'settings' / 'frozen.txt'
STUDY = re.compile(r'Frozen_([^_]+)_(.+)')
N_TRIALS = 10
SCORE = 'map_at_r'
NO_FLAGS = ('trial', 'state', SCORE, 'best_epochs', 'seconds', 'reason')         # the other columns of trials.csv


def read(file):
    """{(set, loss): [flag, ...]} of a file that main() wrote."""
    lines = (line.split() for line in file.read_text(encoding='utf-8').splitlines())
    return {(of, loss): flags for of, loss, *flags in lines}


def best_trial(folder):
    """The flags of the best trial of a search: [--flag=value, ...]; None if the search has not ended."""
    rows = read_csv(folder / 'trials.csv')
    complete = [row for row in rows if row['state'] == 'complete']
    if len(rows) < N_TRIALS:
        return None
    if not complete:
        raise UserError(f'{folder}: all trials failed')
    best = max(complete, key=lambda row: float(row[SCORE]))
    return [f'--{name}={value}' for name, value in best.items() if name not in NO_FLAGS and value]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--studies', type=Path, default='Studies', help='folder of the searches')
    opt = parser.parse_args(arguments)
    folders = sorted(opt.studies.glob('Frozen_*_*'))
    found = {STUDY.fullmatch(folder.name).groups(): best_trial(folder) for folder in folders}
    if not found:
        raise UserError(f'{opt.studies}: it has no searches of studies/Frozen_Searches.sh')
    for key, flags in found.items():
        if not flags:
            print(f'{" ".join(key)}: its search has not ended, and is left out')
    settings = read(FILE) if FILE.exists() else {}
    settings |= {key: flags for key, flags in found.items() if flags}
    FILE.parent.mkdir(exist_ok=True)
    write_text(FILE, ''.join(f'{" ".join([*key, *settings[key]])}\n' for key in sorted(settings)))
    print(FILE)


if __name__ == '__main__':
    sys.exit(errors.exit_code('studies.settings', main))
