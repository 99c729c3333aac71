"""The records of one run, and how to read them from its folder."""
import glob
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from records import columns, run_folder
from records.run_folder import LAST
from utilities.errors import UserError
from utilities.files import read_csv

FINISHED = 'finished'


@dataclass
class Run:
    """
    name:   the name of the run folder, <group>_s<seed>.
    where:  the place of its records: a folder, or a path at W&B.
    flags:  {name: value}, with at least dataset, group and seed.
    rows:   one per evaluated epoch, in order: {'epoch': int, '<split>_<metric>': float, ...}.
    state:  'finished', or a text that says how the run ended.
    test:   the hash of the test split, as in splits.yaml; None where it is not recorded.
    test_images: the hash of its images; None where it is not recorded.
    merged: whether its settings have changed within the run, so that tables leave it out.
    other_data: how its data differ from those of published results, a sentence; '' where they do not.
    """
    name: str
    where: str
    flags: dict
    rows: list = field(default_factory=list)
    state: str = FINISHED
    test: str | None = None
    test_images: str | None = None
    merged: bool = False
    other_data: str = ''

    @property
    def dataset(self):
        return self.flags['dataset']

    @property
    def group(self):
        return self.flags['group']

    @property
    def seed(self):
        return self.flags['seed']


def is_run_folder(folder):
    return (folder / 'config.yaml').is_file() and (folder / 'splits.yaml').is_file()


def read(folder):
    """The Run of a run folder. Raises UserError, naming file and line, where its records are broken or cut off."""
    folder = Path(folder)
    config = run_folder.read(folder)
    flags = config['flags']
    for name in ('dataset', 'group', 'seed'):
        if name not in flags:
            raise UserError(f'{folder}/config.yaml: its flags have no {name}')
    # the summary is read before the log: a run that is under way writes the log first, so that the log may be ahead
    summary = read_summary(folder / 'summary.json', flags.get('n_epochs'))
    rows = read_rows(folder / 'log.csv')
    state = run_progress(folder, flags, rows, summary)
    return Run(folder.name, str(folder), flags, [row for row in rows if any(map(columns.parse, row))], state,
               config.get('test_hash'), config.get('test_images_hash'), bool(config.get('merged')),
               config.get('other_data', ''))


def find(place, settings, chosen=(), files=None):
    """
    The run folder with these settings at `place`, <save_path>/<dataset>/<savename>, or beside it with _1, _2 ...; None
    where there is none. If there are several, the one with the most epochs is returned. Flags that only one side has
    are not compared.

    settings: the flags that are settings. chosen: flags whose values the run must have chosen itself. files: {flag:
    path} of files that the run must have read: the same path, or the same content.
    """
    found = [folder for folder in place.parent.glob(f'{glob.escape(place.name)}*')
             if re.fullmatch(re.escape(place.name) + r'(_\d+)?', folder.name)
             and is_run_folder(folder) and are_same(settings, run_folder.read(folder), chosen, files)]
    return max(found, default=None, key=progress)


def are_same(settings, config, chosen=(), files=None):
    """
    Whether config.yaml describes a run with these settings that chose the values of the flags in `chosen` itself. False
    for a run whose settings have changed within the run.
    """
    flags = config['flags']
    if config.get('merged') or not {*chosen} <= {*config.get('chosen', ())}:
        return False
    if any(flags[name] != value for name, value in settings.items() if name in flags):
        return False
    checksums = config.get('files', {})
    return all(flags.get(name) == path or name in checksums and run_folder.file_checksum(path) == checksums[name]
               for name, path in (files or {}).items())


def progress(folder):
    """(whether the run has a checkpoint, its last evaluated epoch or −1, whether it is finished)"""
    run = read(folder)
    return (folder / LAST).exists(), run.rows[-1]['epoch'] if run.rows else -1, run.state == FINISHED


def is_finished(folder):
    return read(folder).state == FINISHED


def read_rows(file):
    """The rows of a log.csv as numbers; [] without the file. Raises UserError for one that is cut off or broken."""
    rows = []
    for number, row in enumerate(read_texts(file), start=2):
        try:
            rows.append({name: float(value) for name, value in row.items() if value != '' and name != 'epoch'}
                        | {'epoch': int(row['epoch'])})
        except (KeyError, ValueError) as error:
            raise UserError(f'{file}, line {number}: not the numbers of a run ({error}); copy it again, or leave the '
                            'run out') from None
    return rows


def read_texts(file):
    """The rows of a CSV file as they stand; [] without the file. Raises UserError for one that is cut off or broken."""
    read = read_csv(file)
    if file.is_file() and not file.read_bytes().endswith(b'\n'):
        raise UserError(f'{file}: cut off in its last line; copy it again, or leave it out')
    for number, row in enumerate(read, start=2):
        if None in row or None in row.values():
            n_columns = sum(value is not None for name, value in row.items() if name is not None)
            raise UserError(f'{file}, line {number}: cut off or damaged: {n_columns} values for '
                            f'{len(row.keys() - {None})} columns; copy it again, or leave it out')
    return read


def last_epoch(folder):
    """The last epoch that a run folder has a record of; −1 where it has none."""
    rows = read_rows(folder / 'log.csv')
    in_log = rows[-1]['epoch'] if rows else -1
    return max(in_log, read_summary(folder / 'summary.json')[1])


def read_summary(file, n_epochs=None):
    """
    (whether the run is finished, its last epoch) in a summary.json; (False, -1) without the file. A run that finished
    with another number of epochs than `n_epochs` counts as unfinished: it is being extended. Raises UserError where the
    file is damaged, or cannot be read.
    """
    if not file.exists():
        return False, -1
    try:
        summary = json.loads(file.read_text(encoding='utf-8'))
        last = summary['last_epoch']['epoch'] if summary['last_epoch'] else -1
        if not isinstance(summary['finished'], bool) or not isinstance(last, int):
            raise ValueError
    except OSError as error:
        raise UserError(f'{file}: {error.strerror}; copy it again, or leave the run out') from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f'{file}: not a complete summary of a run; copy it again, or leave the run out') from None
    return summary['finished'] and summary.get('n_epochs', n_epochs) == n_epochs, last


def reached(flags, rows):
    """How far an unfinished run came, in words."""
    return f'{rows[-1]["epoch"]} of {flags.get("n_epochs", "?")} epochs' if rows else 'no epoch was recorded'


def run_progress(folder, flags, rows, summary):
    """'finished', or how far a run came. Raises UserError where log.csv ends before the last epoch of summary.json."""
    finished, last = summary
    if [row['epoch'] for row in rows] != list(range(len(rows))):
        raise UserError(f'{folder}/log.csv: rows are missing: its epochs are not 0, 1, 2 and so on; copy it again, or '
                        'leave the run out')
    if last >= len(rows):
        raise UserError(f'{folder}/log.csv: {reached(flags, rows)}, but summary.json has epoch {last}: rows are '
                        'missing; copy it again, or leave the run out')
    return FINISHED if finished else f'unfinished: {reached(flags, rows)}'
