"""records.sqlite: the rows of log.csv in the table `log`, the rows of spectrum.csv in the table `spectrum`."""
import contextlib
import math
import sqlite3

from utilities.files import atomic


class Database:
    """
    Rows are dicts from columns to text, as in the CSV files. A new file with the rows that are given first takes the
    place of the old one. Every call of add() is one transaction: if the process is killed during it, the tables stay as
    they were.
    """

    def __init__(self, file, rows, spectra):
        file.with_name(f'{file.name}-journal').unlink(missing_ok=True)     # SQLite would apply it to the new file
        with atomic(file) as temporary:
            self.connection = sqlite3.connect(temporary)
            with contextlib.closing(self.connection), self.connection:
                self.connection.execute('CREATE TABLE log (epoch INTEGER PRIMARY KEY)')
                self.connection.execute('CREATE TABLE spectrum (epoch INTEGER, split TEXT, number INTEGER, value REAL, '
                                        'PRIMARY KEY (epoch, split, number))')
                self.add(rows, spectra)
        self.connection = sqlite3.connect(file, timeout=60)      # seconds to wait while a reader holds it

    def add(self, rows, spectra):
        """Stores rows of further epochs."""
        with self.connection as connection:
            connection.execute('BEGIN')                        # otherwise each new column would be stored by itself
            known = {column[1] for column in connection.execute('PRAGMA table_info(log)')}
            for row in map(numbers, rows):
                for name in [name for name in row if name not in known]:
                    connection.execute(f'ALTER TABLE log ADD COLUMN {quoted(name)} REAL')
                known |= row.keys()
                connection.execute(f'INSERT INTO log ({", ".join(map(quoted, row))}) VALUES '
                                   f'({", ".join("?" * len(row))})', list(row.values()))
            for row in spectra:
                values = [(int(row['epoch']), row['split'], int(name), float(text)) for name, text in row.items()
                          if name.isdigit() and text]
                connection.executemany('INSERT INTO spectrum VALUES (?, ?, ?, ?)', values)        # NaN becomes NULL

    def close(self):
        self.connection.close()


def numbers(row):
    """A row's numbers, without those that SQLite does not store: empty ones and NaN."""
    values = {name: float(text) for name, text in row.items() if text != '' and name != 'epoch'}
    return {'epoch': int(row['epoch'])} | {name: value for name, value in values.items() if not math.isnan(value)}


def quoted(name):
    return '"' + name.replace('"', '""') + '"'
