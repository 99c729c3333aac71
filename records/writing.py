"""Writes a run's records: log.csv, records.sqlite, spectrum.csv and summary.json; the backends get the same values."""
import contextlib
import json
import math
import sqlite3
import time
from pathlib import Path

import numpy as np

from records import backends, columns
from records.columns import Column
from utilities import processes
from utilities.files import atomic, write_csv, write_text

SPECTRUM = 'rho_spectrum@0'                                # the metric that is a vector, in spectrum.csv


class Records:
    """
    A context manager, which closes the backends at the end. It writes in process 0 only.

    folder: the run folder. start: the epoch with which the run begins or continues. Rows from this epoch on, which a
    killed run has left, are dropped, since these epochs are repeated.
    recorded: None, or the contents() in the checkpoint of the epoch before `start`; all files are restored to them.
    """

    def __init__(self, opt, folder, settings, start, recorded=None):
        self.folder = Path(folder)
        self.opt = opt
        self.backends = []
        self.rows = recorded['rows'] if recorded else []     # all processes need them
        self.spectra = recorded['spectra'] if recorded else []
        # the others wait here: one that failed now would remove the folder of a run that has not trained
        processes.run_on_rank_zero(self.open, settings, start)

    def open(self, settings, start):
        """Opens the files and the backends, and gives these the epochs that they lack; process 0 does it."""
        self.write_files()
        self.backends = backends.select(self.opt, self.folder, settings, start)
        self.clock = time.perf_counter()
        for row in self.rows:
            scalars = {name: float(value) for name, value in row.items() if value != ''}
            spectra = {Column(spectrum['split'], SPECTRUM).name: singular_values(spectrum)
                       for spectrum in self.spectra if spectrum['epoch'] == row['epoch']}
            self.pass_on(int(row['epoch']), scalars, spectra)

    def write_files(self):
        write_database(self.folder / 'records.sqlite', self.rows, self.spectra)
        write_csv(self.folder / 'log.csv', self.rows)
        write_csv(self.folder / 'spectrum.csv', self.spectra)

    @processes.rank_zero_only
    def contents(self):
        """The rows of log.csv and of spectrum.csv, lists of {column: text}."""
        return {'rows': self.rows, 'spectra': self.spectra}

    def pass_on(self, epoch, scalars, spectra):
        """Gives an epoch's values, under their names in log.csv, to the backends that do not have this epoch yet."""
        scalars = named_for_backends(scalars)
        spectra = named_for_backends(spectra)
        for backend in list(self.backends):
            if epoch > backend.last:
                self.try_to(backend, backend.log, epoch, scalars, spectra)

    @processes.rank_zero_only
    def picture(self, name, file, epoch=None):
        """
        Gives a picture, in the PNG `file`, to the backends. epoch: the epoch that is logged next; None: the last one,
        for which W&B takes a picture into its summary only.
        """
        if epoch is None:
            epoch = int(self.rows[-1]['epoch'])
        for backend in list(self.backends):
            self.try_to(backend, backend.picture, name, file, epoch)

    def try_to(self, backend, call, *arguments):
        """Calls call(*arguments); a backend that fails gets no more records."""
        problem = backends.failure(call, *arguments)
        if problem:
            self.backends.remove(backend)
            backends.note(type(backend).__name__, 'takes no more records', problem, self.folder)
            backends.failure(backend.close, True)            # releases what it still holds

    def log(self, epoch, trained, evaluated=None):
        """
        trained:   {'train_loss', 'lr', and other scalars for the backends, named <group>/<name>}.
        evaluated: {'<split>_<metric>': float or array}, or None in an epoch without evaluation.

        Returns the epoch's row of log.csv. Its `seconds` count from the previous row, or from the start. All processes
        call it, and have the same `rows`.
        """
        row, self.rows = processes.run_on_rank_zero(self.write, epoch, trained, evaluated)
        return row

    def write(self, epoch, trained, evaluated):
        """What process 0 does in log(). Returns the epoch's row, and the new `rows`."""
        now = time.perf_counter()
        trained = trained | {'seconds': now - self.clock}
        self.clock = now
        evaluated = evaluated or {}
        print(progress(epoch, trained, evaluated, self.opt.storage_metrics))
        spectra = {name: value for name, value in evaluated.items() if isinstance(value, np.ndarray)}
        row = {'epoch': epoch} | {name: trained.get(name) for name in (columns.LOSS, 'lr', 'seconds')}
        row |= {name: value for name, value in evaluated.items() if name not in spectra}
        statistics = {columns.step_mean_column(name): value for name, value in trained.items()
                      if self.opt.tuple_statistics and columns.step_mean_column(name)}
        rows = [{name: as_text(value) for name, value in (row | statistics).items()}]
        vectors = [{'epoch': str(epoch), 'split': columns.parse(name).split} | numbered(values)
                   for name, values in spectra.items()]
        self.rows = self.rows + rows                         # new lists: Checkpoint.records keeps the old ones
        self.spectra = self.spectra + vectors
        self.write_files()
        self.pass_on(epoch, trained | row, spectra)
        return row, self.rows

    @processes.rank_zero_only
    def summarise(self, state, finished=False):
        """Writes summary.json: whole rows of the Checkpoint `state`, chosen by the first storage metric."""
        metric = self.opt.storage_metrics[0]
        summary = {'finished': finished, 'n_epochs': self.opt.n_epochs, 'selected_by': metric, 'last_epoch': state.row,
                   'best_by_validation': state.best.get(Column('val', metric).name),
                   'best_on_test': state.best.get(Column('test', metric).name)}
        write_text(self.folder / 'summary.json', json.dumps(with_nulls(summary), indent=2) + '\n')

    def __enter__(self):
        return self

    @processes.rank_zero_only
    def __exit__(self, kind, error, traceback):
        for backend in self.backends:
            problem = backends.failure(backend.close, kind is not None)
            if problem:
                backends.note(type(backend).__name__, 'may have lost the last records', problem, self.folder)


def write_database(file, rows, spectra):
    """
    Replaces records.sqlite atomically: the rows of log.csv in the table `log`, the rows of spectrum.csv in the table
    `spectrum`. Rows are dicts from columns to text.
    """
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name != 'epoch']
    columns = ['epoch INTEGER PRIMARY KEY', *(f'{quoted(name)} REAL' for name in names)]
    values = [[int(row['epoch']), *(float(row[name]) if row.get(name) else None for name in names)] for row in rows]
    singular = [(int(row['epoch']), row['split'], int(name), float(text))
                for row in spectra for name, text in row.items() if name.isdigit() and text]
    file.with_name(f'{file.name}-journal').unlink(missing_ok=True)     # SQLite would apply it to the new file
    with (atomic(file) as temporary, contextlib.closing(sqlite3.connect(temporary)) as connection, connection):
        connection.execute(f'CREATE TABLE log ({", ".join(columns)})')
        connection.executemany(f'INSERT INTO log VALUES ({", ".join("?" * len(columns))})', values)   # NaN becomes NULL
        connection.execute('CREATE TABLE spectrum (epoch INTEGER, split TEXT, number INTEGER, value REAL, '
                           'PRIMARY KEY (epoch, split, number))')
        connection.executemany('INSERT INTO spectrum VALUES (?, ?, ?, ?)', singular)


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def progress(epoch, trained, evaluated, storage_metrics):
    """The line that is printed after an epoch: the loss, and --storage_metrics and MAP@R on validation and test."""
    loss = f'loss {trained[columns.LOSS]:.4f}' if epoch else 'before training'
    metrics = dict.fromkeys([*storage_metrics, 'map_at_r'])
    names = [Column(split, metric).name for split in ('val', 'test') for metric in metrics]
    scores = [f'{name} {evaluated[name]:.4f}' for name in names if name in evaluated]
    return '  '.join([f'epoch {epoch:>3}', loss, *scores, f'{trained["seconds"]:.1f} s'])


def named_for_backends(values):
    return {columns.at_backend(name): value for name, value in values.items() if value is not None}


def numbered(values):
    """Singular values, an array -> their columns in spectrum.csv."""
    return {str(i): as_text(value) for i, value in enumerate(values.tolist(), start=1)}


def singular_values(row):
    """A row of spectrum.csv -> its singular values, an array."""
    return np.array([float(value) for name, value in row.items() if name.isdigit() and value])


def as_text(value):
    """A number as text with all digits, so that equal numbers give equal files."""
    return '' if value is None else repr(value.item() if isinstance(value, np.generic) else value)


def with_nulls(value):
    """The value; numbers that are not finite become None, which JSON writes as null."""
    if isinstance(value, dict):
        return {name: with_nulls(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
