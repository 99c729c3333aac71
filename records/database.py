"""records.sqlite: the rows of log.csv in the table `log`, the rows of spectrum.csv in the table `spectrum`."""
import contextlib
import math
import sqlite3

from utilities.files import atomic


def write(file, rows, spectra):
    """Writes the file anew, atomically. rows, spectra: dicts from columns to text, as in the CSV files."""
    names = list(dict.fromkeys(name for row in rows for name in row if name != 'epoch'))
    with atomic(file) as temporary, contextlib.closing(sqlite3.connect(temporary)) as connection, connection:
        connection.execute('CREATE TABLE log (epoch INTEGER PRIMARY KEY' + ''.join(
            f', {quoted(name)} REAL' for name in names) + ')')
        connection.executemany(f'INSERT INTO log VALUES (?{", ?" * len(names)})', (
            [int(row['epoch']), *(number(row.get(name)) for name in names)] for row in rows))
        connection.execute('CREATE TABLE spectrum (epoch INTEGER, split TEXT, number INTEGER, value REAL, '
                           'PRIMARY KEY (epoch, split, number))')
        connection.executemany('INSERT INTO spectrum VALUES (?, ?, ?, ?)', (
            (int(row['epoch']), row['split'], int(name), number(text))
            for row in spectra for name, text in row.items() if name.isdigit() and text))


def number(text):
    """A number of a CSV file; None for an empty one and for NaN, which SQLite does not store."""
    return None if not text or math.isnan(float(text)) else float(text)


def quoted(name):
    return '"' + name.replace('"', '""') + '"'
