"""records.sqlite: the rows of log.csv in the table `log`, the rows of spectrum.csv in the table `spectrum`."""
import contextlib
import sqlite3

from utilities.files import atomic


def write(file, rows, spectra):
    """Replaces the file atomically. rows, spectra: dicts from columns to text, as in the CSV files."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name != 'epoch']
    columns = ['epoch INTEGER PRIMARY KEY', *(f'{quoted(name)} REAL' for name in names)]
    values = [[int(row['epoch']), *(float(row[name]) if row.get(name) else None for name in names)] for row in rows]
    singular = [(int(row['epoch']), row['split'], int(name), float(text))
                for row in spectra for name, text in row.items() if name.isdigit() and text]
    with (atomic(file) as temporary, contextlib.closing(sqlite3.connect(temporary)) as connection, connection):
        connection.execute(f'CREATE TABLE log ({", ".join(columns)})')
        connection.executemany(f'INSERT INTO log VALUES ({", ".join("?" * len(columns))})', values)   # NaN becomes NULL
        connection.execute('CREATE TABLE spectrum (epoch INTEGER, split TEXT, number INTEGER, value REAL, '
                           'PRIMARY KEY (epoch, split, number))')
        connection.executemany('INSERT INTO spectrum VALUES (?, ?, ?, ?)', singular)


def quoted(name):
    return '"' + name.replace('"', '""') + '"'
