"""The images that --csv FILE lists: one row each, with the columns of docs/data.md."""
import csv
import difflib
import functools
import os
import re
import unicodedata
from itertools import zip_longest

from datasets import boxes
from datasets.base import ImageTable, check_names, note_similar_labels
from flags.command_line import shortened
from utilities.errors import UserError

ROLES = ('is_query', 'is_gallery')
COLUMNS = ('path', 'label', 'split', 'group', *ROLES, *boxes.COLUMNS)
PARTS = {'train': 'train', 'training': 'train', 'val': 'val', 'valid': 'val', 'validation': 'val', 'test': 'test',
         'query': 'query', 'gallery': 'gallery', 'distractor': 'distractor'}
MISSING = ('nan', 'NaN', '<NA>')                           # as numpy and pandas write missing values
TRUTH = {'true': True, '1': True, '1.0': True, 'false': False, '0': False, '0.0': False}     # as pandas writes them


def read(file, source_path, names=(), with_groups=False):
    """
    The images of a CSV file with columns path, label and, optionally, split, group and those of a box; paths are
    relative to source_path. Columns whose names begin with "superclass" give the super-class of each label, from the
    nearest level to the coarsest.

    names: of --csv_columns. with_groups: whether the column group is read.
    """
    try:
        with open(file, newline='', encoding='utf-8-sig') as opened:
            reader = csv.reader(opened)
            columns = renamed(file, next(reader, []), names)
            numbered = []
            line = reader.line_num
            for fields in reader:
                if fields:                                                   # no blank line
                    numbered.append((line + 1, dict(zip_longest(columns, fields))))
                line = reader.line_num
    except OSError as error:
        raise UserError(f'--csv {file}: {error.strerror}') from None
    except UnicodeDecodeError as error:
        raise UserError(f'--csv {file}: not a CSV file in UTF-8 ({error})') from None
    except csv.Error as error:
        raise UserError(f'--csv {file}, before line {reader.line_num}: {error}; a double quote may not be closed'
                        ) from None
    if not numbered or not {'path', 'label'} <= set(columns):
        found = f'the columns {", ".join(columns)}' if numbered else 'no row'
        raise UserError(f'--csv {file}: expected a header with the columns path,label and one row per image, found '
                        f'{found}; --csv_columns label=NAME reads another column; optional columns: superclass..., '
                        f'{", ".join(COLUMNS[2:])}')
    of_boxes = boxes.columns_of(file, columns)
    used = {name for name in columns if name in (*COLUMNS, *of_boxes) or name.startswith('superclass')}
    check_columns(file, columns, used)
    check_line_breaks(file, numbered, used)
    lines = [line for line, _ in numbered]
    rows = [stripped(row) for _, row in numbered]
    for line, row in zip(lines, rows, strict=True):
        if None in row:
            raise UserError(f'--csv {file}, line {line}: more fields than the header has; put fields that contain '
                            'a comma in double quotes')
        if not row['path'] or not row['label']:
            raise UserError(f'--csv {file}, line {line}: path and label must not be empty')
        if row['label'] in MISSING:
            raise UserError(f'--csv {file}, line {line}: the label {row["label"]} is a missing value, no class; remove '
                            'the row, or give it a class')
        if 'split' in row:
            part = row['split'] or 'empty'
            if part.lower() not in PARTS:
                raise UserError(f'--csv {file}, line {line}: split must be one of '
                                f'{", ".join(dict.fromkeys(PARTS.values()))}, not {part}')
            row['split'] = PARTS[part.lower()]
    note_similar_labels(f'--csv {file}', {row['label'] for row in rows})
    with_groups = with_groups and 'group' in columns
    check_groups(file, rows, lines, with_groups)
    paths = located(f'--csv {file}', source_path, [row['path'] for row in rows])
    levels = [read_superclasses(file, rows, lines, column) for column in columns if column.startswith('superclass')]
    table = ImageTable(paths, [row['label'] for row in rows], levels=levels or [{}])
    if 'split' in columns:
        table.parts = [row['split'] for row in rows]
    if {*ROLES} & {*columns}:
        table.roles = [read_roles(file, line, row) for line, row in zip(lines, rows, strict=True)]
    if with_groups:
        table.groups = [row['group'] for row in rows]
    if of_boxes:
        table.boxes = boxes.from_rows(file, rows, lines, paths, of_boxes)
    return without_repeats(file, table, lines)


def renamed(file, columns, names):
    """
    The names as which a file's columns are read, by `names`, the values NAME=COLUMN of --csv_columns. Raises UserError
    for a column that the file does not have.
    """
    own = {}
    for entry in names:
        name, _, column = entry.partition('=')
        if column not in columns:
            raise UserError(f'--csv_columns {entry}: {file} has no such column, but {", ".join(columns)}')
        if column in own:
            raise UserError(f'--csv_columns {entry}: the column is read as {own[column]} already; copy it in the file')
        own[column] = name
    replaced = {name: f'{name} of the file' for name in own.values()}               # another column has its name
    return [own.get(column, replaced.get(column, column)) for column in columns]


def read_roles(file, line, row):
    """
    Whether the image of a row is a query, and whether it is in the gallery, by its columns is_query and is_gallery. If
    one of them is missing, it is the opposite of the other. A training image, which has no role, is given both.
    """
    if 'split' not in row:
        raise UserError(f'--csv {file}: is_query and is_gallery need a column split, with train for training images')
    if row['split'] == 'train':
        return True, True
    if row['split'] == 'distractor':
        return False, True
    if row['split'] in ('query', 'gallery'):
        raise UserError(f'--csv {file}, line {line}, column split: found {row["split"]}, expected test, since the '
                        'columns is_query and is_gallery say which images are queries; or leave these two columns out')
    found = {}
    for name in ROLES:
        if name in row:
            text = row[name] or 'nothing'
            if text.lower() not in TRUTH:
                raise UserError(f'--csv {file}, line {line}: {name} must be true or false, not {text}')
            found[name] = TRUTH[text.lower()]
    is_query = found['is_query'] if 'is_query' in found else not found['is_gallery']
    in_gallery = found.get('is_gallery', not is_query)
    if not is_query and not in_gallery:
        raise UserError(f'--csv {file}, line {line}: the image is neither query nor gallery; remove the row')
    return is_query, in_gallery


def check_line_breaks(file, numbered, used):
    """
    Raises UserError for a line break in a field that is read; prints in which line another field has the first one.

    numbered: [(line, row)]. used: the names of the columns that are read.
    """
    broken = [(line, name, text) for line, row in numbered for name, text in row.items()
              if isinstance(text, str) and ('\n' in text or '\r' in text)]
    for line, name, text in broken:
        if name in used:
            raise UserError(f'--csv {file}, line {line}: {name} has a line break ({shortened(ascii(text))}); a '
                            'double quote is not closed, or remove the line break')
    if broken:
        print(f'Note: --csv {file}: columns that are not read have line breaks, the first in line {broken[0][0]}; if a '
              'double quote is not closed there, the rows that follow it are lost')


def located(where, folder, names, stream=None):
    """
    The paths in `folder` that a list names. If there is no such file, the path without blanks at its ends and with /
    for backslashes is tried; prints how many paths were changed. where: for the note. stream: None: sys.stdout.
    """
    paths = []
    n_changed = 0
    for name in names:
        path = folder / name
        other = folder / name.strip().replace('\\', '/')
        if other != path and not os.path.isfile(path) and os.path.isfile(other):
            path = other
            n_changed += 1
        paths.append(path)
    if n_changed:
        print(f'Note: {where}: {n_changed:,} of {len(paths):,} paths are read with / for backslashes, and without '
              'blanks at their ends', file=stream)
    return paths


def stripped(row):
    """
    A row {column: text or None}; all texts but the path are stripped of blanks and in Unicode's NFC, and all but path
    and label are '' where they are MISSING: images of unknown groups are not of one group.
    """
    texts = {name: unicodedata.normalize('NFC', text.strip()) for name, text in row.items()
             if name != 'path' and isinstance(text, str)}
    missing = {name: '' for name, text in texts.items() if text in MISSING and name != 'label'}
    return row | texts | missing


def check_columns(file, columns, used):
    """
    Raises UserError for a column that occurs twice or seems to be misspelt. Prints the columns that are not `used`,
    except for the index that pandas writes.
    """
    twice = [name for name in columns if name and columns.count(name) > 1]
    if twice:
        raise UserError(f'--csv {file}: its header has the column "{twice[0]}" twice; remove one')
    unknown = [name for name in columns if name not in used and not re.fullmatch(r'(Unnamed: \d+(\.\d+)*)?', name)]
    missing = [name for name in (*COLUMNS, 'superclass') if name not in columns]
    for name in unknown:
        meant = difflib.get_close_matches(name.strip().lower(), missing, n=1, cutoff=.8)
        if meant:
            raise UserError(f'--csv {file}: the column "{name}" is not read; if it is meant to be "{meant[0]}", '
                            'correct the header, or else give it a name that is not so similar')
    if unknown:
        print(f'Note: --csv {file}: these columns are not read: {", ".join(unknown)}')


def without_repeats(file, table, lines):
    """
    The table without the rows that repeat the file and box of an earlier row; prints how many. Raises UserError if such
    a row has another label, part or group.
    """
    check_names(table)
    real_folder = functools.cache(os.path.realpath)                      # a large list names few folders
    first = {}
    conflicts = []
    no_values = [''] * len(lines)
    roles = [' and '.join(name for name, has in zip(('query', 'gallery'), role, strict=True) if has)
             for role in table.roles or ()]
    entries = list(zip(table.classes, table.parts or no_values, roles or no_values, table.groups or no_values,
                       strict=True))
    for i, path in enumerate(table.paths):
        place = os.path.join(real_folder(path.parent), path.name)        # the same for ./a.jpg, and for linked folders
        key = (place, *table.boxes[i][1:5]) if table.boxes else place
        earlier = first.setdefault(key, i)
        if entries[i] != entries[earlier]:
            conflicts.append((earlier, i))
    if conflicts:
        where = ' and '.join(f'as {" ".join(entries[i]).strip()} in line {lines[i]}' for i in conflicts[0])
        raise UserError(f'--csv {file}: {len(conflicts):,} rows list an image again under another label, split or '
                        f'group, the first: {table.sources[conflicts[0][1]]}, {where}; expected one row per image, in '
                        'which both is_query and is_gallery may be true')
    if len(first) < len(lines):
        print(f'Note: --csv {file}: {len(lines) - len(first):,} of {len(lines):,} rows list an image again and are '
              'left out')
    return table.keep(list(first.values()))


def check_groups(file, rows, lines, with_groups):
    """Raises UserError if a group that is used is empty, or if a label is given to distractors and to other images."""
    distractors = {row['label'] for row in rows if row.get('split') == 'distractor'}
    for line, row in zip(lines, rows, strict=True):
        if with_groups and not row['group']:
            raise UserError(f'--csv {file}, line {line}: group must not be empty; give each image without a known '
                            'group a value of its own')
        if row['label'] in distractors and row['split'] != 'distractor':
            raise UserError(f'--csv {file}, line {line}: the label {row["label"]} is also given to distractors, '
                            'which are of no class; give them a label of their own')


def read_superclasses(file, rows, lines, column):
    """{class: its super-class} from a CSV column. Raises UserError if a field is empty or a class has two values."""
    level = {}
    for line, row in zip(lines, rows, strict=True):
        if not row[column] or level.setdefault(row['label'], row[column]) != row[column]:
            values = f'{row[column]} here and {level[row["label"]]} before' if row[column] else 'empty'
            raise UserError(f'--csv {file}, line {line}: {column} must be the same for all images of a label and not '
                            f'empty; for {row["label"]} it is {values}')
    return level
