"""What a run writes down: log.csv, records.sqlite, spectrum.csv, summary.json, and the same to the backends."""
import json
import math
import sqlite3
from pathlib import Path

import numpy as np

from utilities import backends, run_folder, run_records
from utilities.errors import UserError
from utilities.files import read_csv, write_csv, write_text


class Records:
    """
    A context, which closes what is open. folder: of the run. start: the epoch the run starts or goes on with; rows from
    then on, of a run that was killed after writing them, are dropped, since they come again.
    """

    def __init__(self, opt, folder, settings, start):
        self.folder, self.opt = Path(folder), opt
        self.rows = [row for row in read_csv(self.folder / 'log.csv') if int(row['epoch']) < start]
        self.spectra = [row for row in read_csv(self.folder / 'spectrum.csv') if int(row['epoch']) < start]
        self.database = sqlite3.connect(self.folder / 'records.sqlite')
        self.store([], start)
        write_csv(self.folder / 'log.csv', self.rows)
        write_csv(self.folder / 'spectrum.csv', self.spectra)
        self.backends = backends.select(opt, self.folder, settings, start)
        for row in self.rows:
            self.pass_on(int(row['epoch']), {slashed(name): float(value) for name, value in row.items() if value != ''},
                         {f'{spectrum["split"]}/rho_spectrum@0': spectrum_of(spectrum)
                          for spectrum in self.spectra if spectrum['epoch'] == row['epoch']})

    def pass_on(self, epoch, scalars, spectra):
        """To the backends that have not got this epoch yet."""
        for backend in self.backends:
            if epoch > backend.last:
                backend.log(epoch, scalars, spectra)

    def log(self, epoch, trained, evaluated=None):
        """
        trained:   {'train_loss', 'lr', 'seconds', and whatever else a backend takes, named <where>/<what>}.
        evaluated: {'<split>_<metric>': float or array}, or None in an epoch without evaluation.

        Returns the epoch's row of log.csv, or None.
        """
        scalars = {slashed(name): value for name, value in trained.items()}
        row, spectra = None, {}
        if evaluated is not None:
            print(progress(epoch, trained, evaluated, self.opt.storage_metrics))
            spectra = {name: value for name, value in evaluated.items() if isinstance(value, np.ndarray)}
            row = {'epoch': epoch} | {name: trained.get(name) for name in ('train_loss', 'lr', 'seconds')} | {
                name: value for name, value in evaluated.items() if name not in spectra}
            self.store([row], epoch)
            self.rows.append({name: as_text(value) for name, value in row.items()})
            write_csv(self.folder / 'log.csv', self.rows)
            for name, values in spectra.items():
                self.spectra.append({'epoch': str(epoch), 'split': name.split('_')[0]}
                                    | {str(i): as_text(value) for i, value in enumerate(values.tolist(), start=1)})
            if spectra:
                write_csv(self.folder / 'spectrum.csv', self.spectra)
            scalars |= {slashed(name): value for name, value in row.items() if value is not None}
        self.pass_on(epoch, scalars, {slashed(name): values for name, values in spectra.items()})
        return row

    def summarise(self, last, best, finished):
        """summary.json: whole rows, chosen by the first storage metric."""
        metric = self.opt.storage_metrics[0]
        summary = {'finished': finished, 'selected_by': metric, 'last_epoch': last,
                   'best_by_validation': best.get(f'val_{metric}'), 'best_on_test': best.get(f'test_{metric}')}
        write_text(self.folder / 'summary.json', json.dumps(plain(summary), indent=2) + '\n')

    def store(self, rows, start):
        """Replaces what records.sqlite has from the epoch `start` on by `rows`."""
        with self.database as database:
            database.execute('CREATE TABLE IF NOT EXISTS log (epoch INTEGER PRIMARY KEY)')
            database.execute('DELETE FROM log WHERE epoch >= ?', (start,))
            columns = {column[1] for column in database.execute('PRAGMA table_info(log)')}
            for row in rows:
                for name in [name for name in row if name not in columns]:
                    database.execute(f'ALTER TABLE log ADD COLUMN {quoted(name)} REAL')
                columns |= row.keys()
                names, marks = ', '.join(map(quoted, row)), ', '.join('?' * len(row))
                database.execute(f'INSERT INTO log ({names}) VALUES ({marks})', list(row.values()))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.database.close()
        for backend in self.backends:
            backend.close(failed=kind is not None)


def untrained(other, folder, flags):
    """
    The untrained network's metrics, {'<split>_<metric>': float, or array for rho_spectrum@0}, that the run folder
    `other` has recorded, for the run in `folder`. Raises UserError where one of `flags` or the splits differ.
    """
    ours, theirs = run_folder.read(folder), run_folder.read(other)
    for name in flags:
        if ours['flags'].get(name) != theirs['flags'].get(name) and name not in run_folder.MACHINE:
            raise UserError(f'--untrained {other}: its --{name} is {theirs["flags"].get(name)}, that of this run '
                            f'{ours["flags"].get(name)}; the untrained network has other metrics')
    if ours['split_hash'] != theirs['split_hash']:
        raise UserError(f'--untrained {other}: its classes or numbers of images are not those of this run')
    rows = run_records.rows_of(Path(other) / 'log.csv')
    if not rows or rows[0]['epoch'] != 0:
        raise UserError(f'--untrained {other}: it has no record of the untrained network, epoch 0')
    spectra = {f'{row["split"]}_rho_spectrum@0': spectrum_of(row) for row in read_csv(Path(other) / 'spectrum.csv')
               if row['epoch'] == '0'}
    return {name: value for name, value in rows[0].items() if name.partition('_')[0] in run_records.SPLITS
            and name != 'train_loss'} | spectra


def progress(epoch, trained, evaluated, storage_metrics):
    """A line for people: the loss, and the storage metrics and MAP@R on the classes that were not trained on."""
    parts = [f'epoch {epoch:>3}'] + ([f'loss {trained["train_loss"]:.4f}'] if epoch else ['untrained'])
    metrics = dict.fromkeys([*storage_metrics, 'map_at_r'])
    for name in [f'{split}_{metric}' for split in ('val', 'test') for metric in metrics]:
        if name in evaluated:
            parts.append(f'{name} {evaluated[name]:.4f}')
    return '  '.join([*parts, f'{trained["seconds"]:.1f} s'])


def slashed(name):
    """test_e_recall@1 -> test/e_recall@1, the name at the backends."""
    split, _, metric = name.partition('_')
    return f'{split}/{metric}' if split in ('train', 'val', 'test') and metric else name


def spectrum_of(row):
    """A row of spectrum.csv -> its singular values, an array."""
    return np.array([float(value) for name, value in row.items() if name.isdigit() and value])


def as_text(value):
    """With all digits, so that equal numbers give equal files."""
    return '' if value is None else repr(value)


def plain(value):
    """As JSON has it: null for what is not finite."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def quoted(name):
    return '"' + name.replace('"', '""') + '"'
