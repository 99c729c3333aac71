"""--split_scheme time: the images before a point in time train, the later ones test."""
import math
from datetime import UTC, datetime
from typing import NamedTuple

from utilities.errors import UserError

EXPECTED = 'a number, or a date (and time) as in ISO 8601, such as 2024-05-31 or 2024-05-31T12:30'


class Moment(NamedTuple):
    """value: the number, or seconds since 1970 (UTC, unless the text names a time zone). kind: what the text is."""
    value: float
    text: str
    kind: str


def moment(text):
    """The Moment of a text. Raises ValueError if it is neither a number nor a date of ISO 8601."""
    try:
        value, kind = float(text), 'a number'
    except ValueError:
        date = datetime.fromisoformat(text)
        kind = 'a date' + (' with a time zone' if date.tzinfo else '')
        value = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(value):
        raise ValueError(text)
    return Moment(value, text, kind)


def from_rows(file, rows):
    """The Moments of the column `time`. Raises UserError if one cannot be read, or differs in kind from the first."""
    found = []
    for number, row in enumerate(rows, start=2):
        try:
            found.append(moment(row['time'] or ''))
        except ValueError:
            raise UserError(f'--csv {file}, line {number}: time must be {EXPECTED}; it is {row["time"] or "empty"}'
                            ) from None
        if found[-1].kind != found[0].kind:
            raise UserError(f'--csv {file}, line {number}: time is {found[-1].kind} ({row["time"]}), but in line 2 '
                            f'{found[0].kind} ({found[0].text}); write all times alike')
    return found


def split(opt, table):
    """
    table -> {'train': the images before the split point, 'test': the others} (lists of indices). With --time_split
    disjoint, test images of individuals (classes) with a training image are in neither.

    The split point is --test_from, or else the time at which the last fraction --test_size of the images begins; images
    of the same time are in the same split.
    """
    if table.times is None:
        raise UserError(f'--split_scheme time: --dataset {opt.dataset} has no times here; give --dataset folder and a '
                        '--csv with a column time')
    values = [time.value for time in table.times]
    start = first_test_time(opt, table.times, values)
    train = [i for i, value in enumerate(values) if value < start]
    known = {table.classes[i] for i in train} if opt.time_split == 'disjoint' else ()
    return {'train': train,
            'test': [i for i, value in enumerate(values) if value >= start and table.classes[i] not in known]}


def first_test_time(opt, times, values):
    if opt.test_from is None:
        n_test = math.floor(len(values) * opt.test_size + 1e-9)
        return sorted(values)[-n_test] if n_test else math.inf
    start = moment(opt.test_from)
    if start.kind != times[0].kind:
        raise UserError(f'--test_from {opt.test_from} is {start.kind}, but the column time has {times[0].kind} '
                        f'({times[0].text}); write both alike')
    return start.value


def describe(table, splits):
    """What splits.yaml says of it: the last time in the training split, the first in the test split, images in none."""
    def end(split, choose):
        return choose((table.times[i] for i in splits.get(split, ())), default=None)

    last, first = end('train', max), end('test', min)
    return {'last_training_time': last and last.text, 'first_test_time': first and first.text,
            'n_left_out': len(table.paths) - sum(map(len, splits.values()))}
