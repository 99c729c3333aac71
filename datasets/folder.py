"""
Images of your own: <source_path>/images/<class>/*, <source_path>/images/<super-class>/.../<class>/*, or the images
that --csv FILE lists.
"""
import csv
import difflib
import os
from pathlib import Path

from datasets import boxes
from datasets.base import ImageTable, class_folders, find, image_files, subfolders
from utilities.errors import UserError

COLUMNS = ('path', 'label', 'split', 'group', *boxes.COLUMNS)
PARTS = ('train', 'val', 'test', 'query', 'gallery', 'distractor')


def load(opt):
    if opt.download:
        raise UserError('--download: --dataset folder is your own data; there is nothing to download')
    if opt.csv:
        return listed(Path(opt.csv), Path(opt.source_path), with_groups='across' in opt.eval_level)
    folder = find(opt, 'folder', ['images'], '<class>/*.jpg (or .png ...), one folder per class, in folders of '
                  'super-classes if there are any')
    return in_folders(folder)


def in_folders(folder):
    """The table of a folder of class folders, or of super-class folders that contain class folders."""
    return class_folders(folder) if any(map(image_files, subfolders(folder))) else nested(folder)


def nested(folder):
    """
    The table of a folder of super-class folders, on one level or more, that contain class folders. The name of a class
    or super-class is its path below `folder`. Hidden folders are left out. Raises UserError if classes are at different
    depths.
    """
    walked, paths, classes, beside = [], [], [], []
    for above, folders, _ in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith('.')]
        walked.append(Path(above))
    for path in sorted(walked):
        files = image_files(path, beside)
        paths += files
        classes += [path.relative_to(folder).as_posix()] * len(files)
    depths = {name.count('/'): name for name in classes}
    if len(depths) > 1:
        one, other, *_ = depths.values()
        raise UserError(f'{folder}: the classes must all be in the same number of folders of super-classes, unlike '
                        f'{one} and {other}')
    names = sorted(set(classes))
    superclasses, *coarser = [{name: name.rsplit('/', level)[0] for name in names}
                              for level in range(1, max(depths, default=0) + 1)] or [{}]
    ignored = [path for path in beside if not path.is_dir()]
    return ImageTable(paths, classes, superclasses=superclasses, coarser=coarser, ignored=ignored)


def listed(file, source_path, with_groups=False):
    """
    The images of a CSV file with columns path, label and, optionally, split, group and x1,y1,x2,y2 (a box); paths are
    relative to source_path. Columns whose names begin with "superclass" give the super-class of each label, from the
    nearest level to the coarsest. with_groups: whether the column group is read.
    """
    try:
        with open(file, newline='', encoding='utf-8-sig') as opened:
            reader = csv.DictReader(opened)
            rows, columns = list(reader), reader.fieldnames or []
    except OSError as error:
        raise UserError(f'--csv {file}: {error.strerror}') from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f'--csv {file}: not a CSV file in UTF-8 ({error})') from None
    if not rows or not {'path', 'label'} <= set(columns):
        raise UserError(f'--csv {file}: expected a header with the columns path,label[,split] and one row per image, '
                        + (f'found the columns {", ".join(columns)}' if rows else 'found no row'))
    check_columns(file, columns)
    for number, row in enumerate(rows, start=2):
        if None in row:
            raise UserError(f'--csv {file}, line {number}: more fields than the header has; put fields that contain '
                            'a comma in double quotes')
        if not row['path'] or not row['label'] or ('split' in row and row['split'] not in PARTS):
            raise UserError(f'--csv {file}, line {number}: path and label must not be empty'
                            + (f', and split must be one of {", ".join(PARTS)}' if 'split' in row else ''))
    with_groups = with_groups and 'group' in columns
    check_groups(file, rows, with_groups)
    paths = [source_path / row['path'] for row in rows]
    superclasses, *coarser = [read_superclasses(file, rows, column) for column in columns
                              if column.startswith('superclass')] or [{}]
    table = ImageTable(paths, [row['label'] for row in rows],
                       [row['split'] for row in rows] if 'split' in columns else None, superclasses, coarser=coarser,
                       groups=[row['group'] for row in rows] if with_groups else None,
                       boxes=boxes.from_rows(file, rows, paths) if {*boxes.COLUMNS} & {*columns} else None)
    note_repeated(file, table)
    return table


def check_columns(file, columns):
    """Raises UserError for a column that occurs twice or seems to be misspelt; prints the others that are not read."""
    if twice := [name for name in columns if name and columns.count(name) > 1]:
        raise UserError(f'--csv {file}: its header has the column "{twice[0]}" twice; remove one')
    unknown = [name for name in columns if name not in COLUMNS and not name.startswith('superclass')]
    missing = [name for name in (*COLUMNS, 'superclass') if name not in columns]
    for name in unknown:
        if meant := difflib.get_close_matches(name.strip().lower(), missing, n=1, cutoff=.8):
            raise UserError(f'--csv {file}: the column "{name}" is not read; if it is meant to be "{meant[0]}", '
                            'correct the header, or else give it a name that is not so similar')
    if unknown:
        print(f'Note: --csv {file}: these columns are not read: {", ".join(unknown)}')


def note_repeated(file, table):
    """Prints how many images are listed more than once under different labels or in different parts, and the first."""
    first, repeated = {}, {}
    for line, source in enumerate(table.sources, start=2):
        entry = table.classes[line - 2], table.parts[line - 2] if table.parts else ''
        key = source[:5] if isinstance(source, boxes.Box) else source
        if first.setdefault(key, (entry, line))[0] != entry:
            repeated.setdefault(source, (first[key], (entry, line)))
    if repeated:
        source, entries = next(iter(repeated.items()))
        where = ' and '.join(f'as {" ".join(entry).strip()} in line {line}' for entry, line in entries)
        print(f'Note: --csv {file}: {len(repeated)} images are listed under several labels or splits, the first: '
              f'{source}, {where}')


def check_groups(file, rows, with_groups):
    """Raises UserError if a group that is used is empty, or if a label is given to distractors and to other images."""
    distractors = {row['label'] for row in rows if row.get('split') == 'distractor'}
    for number, row in enumerate(rows, start=2):
        if with_groups and not row['group']:
            raise UserError(f'--csv {file}, line {number}: group must not be empty; give each image without a known '
                            'group a value of its own')
        if row['label'] in distractors and row['split'] != 'distractor':
            raise UserError(f'--csv {file}, line {number}: the label {row["label"]} is also given to distractors, '
                            'which are of no class; give them a label of their own')


def read_superclasses(file, rows, column):
    """{class: its super-class} from a CSV column. Raises UserError if a field is empty or a class has two values."""
    level = {}
    for number, row in enumerate(rows, start=2):
        if not row[column] or level.setdefault(row['label'], row[column]) != row[column]:
            raise UserError(f'--csv {file}, line {number}: {column} must be the same for all images of a label and not '
                            f'empty; for {row["label"]} it is {row[column] or "empty"}'
                            + (f' here and {level[row["label"]]} before' if row[column] else ''))
    return level
