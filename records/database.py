"""records.sqlite: the rows of log.csv in the table `log`, the rows of spectrum.csv in the table `spectrum`."""
import math
import sqlite3

# errors that occur with an undamaged file too; any other error means that the file is damaged
NO_DAMAGE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
             sqlite3.SQLITE_CANTOPEN}


class Database:
    """
    Rows are dicts from columns to text, as in the CSV files. Every call is one transaction: if the process is killed
    during it, the tables stay as they were.
    """

    def __init__(self, file):
        self.connection = sqlite3.connect(file, timeout=60)      # seconds to wait while a reader holds it

    def replace(self, start, rows, spectra):
        """Replaces the stored rows from the epoch `start` on."""
        with self.connection as connection:
            connection.execute('CREATE TABLE IF NOT EXISTS log (epoch INTEGER PRIMARY KEY)')
            connection.execute('CREATE TABLE IF NOT EXISTS spectrum (epoch INTEGER, split TEXT, number INTEGER, '
                               'value REAL, PRIMARY KEY (epoch, split, number))')
            for table in ('log', 'spectrum'):
                connection.execute(f'DELETE FROM {table} WHERE epoch >= ?', (start,))
            known = {column[1] for column in connection.execute('PRAGMA table_info(log)')}
            for row in map(numbers, rows):
                for name in [name for name in row if name not in known]:
                    connection.execute(f'ALTER TABLE log ADD COLUMN {quoted(name)} REAL')
                known |= row.keys()
                connection.execute(f'INSERT INTO log ({", ".join(map(quoted, row))}) VALUES '
                                   f'({", ".join("?" * len(row))})', list(row.values()))
            connection.executemany('INSERT INTO spectrum VALUES (?, ?, ?, ?)', map_spectra(spectra))

    def holds(self, rows, spectra):
        """Whether the file is undamaged and stores exactly these rows for the epochs up to the last of them."""
        last = max((int(row['epoch']) for row in rows), default=-1)
        cursor = self.connection.execute('SELECT * FROM log WHERE epoch <= ? ORDER BY epoch', (last,))
        names = [column[0] for column in cursor.description]
        stored = [{name: value for name, value in zip(names, row, strict=True) if value is not None} for row in cursor]
        of_spectra = self.connection.execute('SELECT * FROM spectrum WHERE epoch <= ? ORDER BY epoch, split, number',
                                             (last,))
        return (stored == list(map(numbers, rows)) and of_spectra.fetchall() == sorted(map_spectra(spectra))
                and self.connection.execute('PRAGMA integrity_check').fetchone() == ('ok',))

    def close(self):
        self.connection.close()


def opened(file, rows, spectra):
    """(the Database, made to hold exactly these rows; whether it held them before)."""
    database = Database(file)
    try:
        whole = database.holds(rows, spectra)
        if whole:
            database.replace(max((int(row['epoch']) for row in rows), default=-1) + 1, [], [])
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if getattr(error, 'sqlite_errorcode', 0) & 0xff in NO_DAMAGE:        # the upper bits hold the exact code
            raise
        whole = False
    if not whole:
        database.close()
        for name in (file.name, f'{file.name}-journal'):
            file.with_name(name).unlink(missing_ok=True)
        database = Database(file)
        database.replace(0, rows, spectra)
    return database, whole


def numbers(row):
    """A row's numbers, without those that SQLite does not store: empty ones and NaN."""
    values = {name: float(text) for name, text in row.items() if text != '' and name != 'epoch'}
    return {'epoch': int(row['epoch'])} | {name: value for name, value in values.items() if not math.isnan(value)}


def map_spectra(spectra):
    return [(int(row['epoch']), row['split'], int(name), None if math.isnan(float(text)) else float(text))
            for row in spectra for name, text in row.items() if name.isdigit() and text]


def quoted(name):
    return '"' + name.replace('"', '""') + '"'
