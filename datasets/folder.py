"""
Images of your own: <source_path>/images/<class>/*, <source_path>/images/<super-class>/.../<class>/*, official parts
such as <source_path>/train/<class>/* and <source_path>/test/<class>/*, or the images that --csv FILE lists.
"""
import csv
import difflib
import functools
import os
import re
import unicodedata
from collections import ChainMap, Counter
from pathlib import Path

from datasets import boxes
from datasets.base import ImageTable, check_names, class_folders, files_in, find, image_files, subfolders
from utilities.errors import UserError

COLUMNS = ('path', 'label', 'split', 'group', *boxes.COLUMNS)
PARTS = ('train', 'val', 'test', 'query', 'gallery', 'distractor')
PART_OF_FOLDER = {'train': 'train', 'training': 'train', 'val': 'val', 'valid': 'val', 'validation': 'val',
                  'test': 'test', 'query': 'query', 'gallery': 'gallery'}
PART_OF_PERSONS = {'bounding_box_train': 'train', 'query': 'query', 'bounding_box_test': 'gallery'}
WHERE = ('images/<class>/*.jpg (or .png ...), also in folders of super-classes; or train/<class>/*.jpg and '
         'test/<class>/*.jpg; or images anywhere that --csv FILE lists')


def load(opt):
    if opt.download:
        raise UserError('--download: --dataset folder is your own data; there is nothing to download')
    if opt.csv:
        return listed(Path(opt.csv), Path(opt.source_path), with_groups='across' in opt.eval_level)
    source = Path(opt.source_path)
    if os.path.isdir(source) and not os.path.exists(source / 'images'):
        table = official_split(source)
        if table:
            return table
    return in_folders(find(opt, 'folder', ['images'], WHERE))


def in_folders(folder):
    """The table of a folder that contains class folders, super-class folders with class folders, or official parts."""
    return official_split(folder) or class_table(folder)


def class_table(folder):
    """The table of a folder of class folders, or of super-class folders that contain class folders."""
    return class_folders(folder) if any(map(image_files, subfolders(folder))) else nested(folder)


def official_split(folder):
    """
    The table of an official split: its parts are folders with a name in PART_OF_FOLDER that contain folders of classes
    or super-classes, or the folders of Market-1501. None where there are no such folders. Raises UserError where other
    folders beside the parts contain images or classes.
    """
    if all((folder / name).is_dir() for name in PART_OF_PERSONS):
        return market_table(folder)
    named = [path for path in subfolders(folder) if path.name.lower() in PART_OF_FOLDER and not image_files(path)]
    tables = {path: class_table(path) for path in named}
    tables = {path: table for path, table in tables.items() if table.paths}
    if not tables:
        return None
    names = f'folder{"s" if len(tables) > 1 else ""} {", ".join(path.name for path in tables)}'
    for path in subfolders(folder):
        if path not in tables and (image_files(path) or any(map(image_files, subfolders(path)))):
            raise UserError(f'{folder}: the {names} would be the official split, but {path.name} contains '
                            'images or classes, too; move it elsewhere, or rename the folders if they are '
                            'super-classes')
    print(f'Note: {folder}: official split by the {names}; --split_scheme half would split all classes')
    levels = zip(*([table.superclasses, *table.coarser] for table in tables.values()), strict=False)
    superclasses, *coarser = [dict(ChainMap(*level)) for level in levels]
    joined = ImageTable([], [], [], superclasses, coarser, files_in(folder))
    for path, table in tables.items():
        joined.paths += table.paths
        joined.classes += table.classes
        joined.parts += [PART_OF_FOLDER[path.name.lower()]] * len(table.paths)
        joined.ignored += table.ignored
    return joined


def market_table(folder):
    """
    The table of Market-1501's three folders, where 0002_c1s1_000451_03.jpg is person 2 before camera 1, the group.
    Images of no person (-1, junk) are left out; those of 0000 are distractors.
    """
    table = ImageTable([], [], [], groups=[])
    n_left_out = 0
    for name, part in PART_OF_PERSONS.items():
        for path in image_files(folder / name, table.ignored):
            found = re.match(r'(-1|junk|\d+)_c(\d+)', path.name)
            if not found:
                raise UserError(f'{path}: expected a name as in Market-1501, such as 0002_c1s1_000451_03.jpg for '
                                'person 2 before camera 1; rename or remove it, or list the images in a --csv')
            person, camera = found.groups()
            if person in ('-1', 'junk'):
                n_left_out += 1
                continue
            table.paths.append(path)
            table.classes.append(person)
            table.parts.append('distractor' if person == '0000' else part)
            table.groups.append(camera)
    counts = ', '.join(f'{number:,} {part}' for part, number in Counter(table.parts).items())
    print(f'Note: {folder}: images in the folders of Market-1501: {counts}; {n_left_out:,} of no person (-1, junk) are '
          'left out')
    return table


def nested(folder):
    """
    The table of a folder of super-class folders, on one level or more, that contain class folders. The name of a class
    or super-class is its path below `folder`. Hidden folders are left out. Raises UserError if classes are at different
    depths.
    """
    walked = []
    paths = []
    classes = []
    beside = []
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
            numbered = [(reader.line_num, row) for row in reader]
            columns = reader.fieldnames or []
    except OSError as error:
        raise UserError(f'--csv {file}: {error.strerror}') from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f'--csv {file}: not a CSV file in UTF-8 ({error})') from None
    if not numbered or not {'path', 'label'} <= set(columns):
        found = f'the columns {", ".join(columns)}' if numbered else 'no row'
        raise UserError(f'--csv {file}: expected a header with the columns path,label[,split] and one row per image, '
                        f'found {found}')
    check_columns(file, columns)
    lines = [line for line, _ in numbered]
    rows = [stripped(row) for _, row in numbered]
    for line, row in zip(lines, rows, strict=True):
        if None in row:
            raise UserError(f'--csv {file}, line {line}: more fields than the header has; put fields that contain '
                            'a comma in double quotes')
        if not row['path'] or not row['label'] or ('split' in row and row['split'] not in PARTS):
            also = f', and split must be one of {", ".join(PARTS)}' if 'split' in row else ''
            raise UserError(f'--csv {file}, line {line}: path and label must not be empty{also}')
    note_similar_labels(file, {row['label'] for row in rows})
    with_groups = with_groups and 'group' in columns
    check_groups(file, rows, lines, with_groups)
    paths = [source_path / row['path'] for row in rows]
    superclasses, *coarser = [read_superclasses(file, rows, lines, column) for column in columns
                              if column.startswith('superclass')] or [{}]
    table = ImageTable(paths, [row['label'] for row in rows], superclasses=superclasses, coarser=coarser)
    if 'split' in columns:
        table.parts = [row['split'] for row in rows]
    if with_groups:
        table.groups = [row['group'] for row in rows]
    if {*boxes.COLUMNS} & {*columns}:
        table.boxes = boxes.from_rows(file, rows, lines, paths)
    return without_repeats(file, table, lines)


def stripped(row):
    """A row {column: text or None} with its texts, but for the path, stripped of blanks and in Unicode's NFC."""
    texts = {name: unicodedata.normalize('NFC', text.strip()) for name, text in row.items()
             if name != 'path' and isinstance(text, str)}
    return row | texts


def check_columns(file, columns):
    """
    Raises UserError for a column that occurs twice or seems to be misspelt; prints the others that are not read, but
    for the index that pandas writes.
    """
    twice = [name for name in columns if name and columns.count(name) > 1]
    if twice:
        raise UserError(f'--csv {file}: its header has the column "{twice[0]}" twice; remove one')
    unknown = [name for name in columns if name not in COLUMNS and not name.startswith('superclass')
               and not re.fullmatch(r'(Unnamed: \d+(\.\d+)*)?', name)]
    missing = [name for name in (*COLUMNS, 'superclass') if name not in columns]
    for name in unknown:
        meant = difflib.get_close_matches(name.strip().lower(), missing, n=1, cutoff=.8)
        if meant:
            raise UserError(f'--csv {file}: the column "{name}" is not read; if it is meant to be "{meant[0]}", '
                            'correct the header, or else give it a name that is not so similar')
    if unknown:
        print(f'Note: --csv {file}: these columns are not read: {", ".join(unknown)}')


def note_similar_labels(file, labels):
    """Prints labels that are one number, such as 1 and 1.0, or differ in upper and lower case only."""
    alike = {}
    for label in sorted(labels):
        is_number = re.fullmatch(r'[+-]?\d+(\.\d*)?', label)
        key = float(label) if is_number else label.casefold()
        alike.setdefault(key, []).append(label)
    pairs = [' and '.join(found) for found in alike.values() if len(found) > 1]
    if pairs:
        more = f', and {len(pairs) - 3:,} more' if len(pairs) > 3 else ''
        print(f'Note: --csv {file}: these labels are different classes, although they are one number or differ in case '
              f'only: {", ".join(pairs[:3])}{more}')


def without_repeats(file, table, lines):
    """
    The table without the rows that repeat the file and box of an earlier row; prints how many. Raises UserError where
    the label or the part is not that of the earlier row.
    """
    check_names(table)
    real_folder = functools.cache(os.path.realpath)                      # a large list names few folders
    first = {}
    conflicts = []
    entries = list(zip(table.classes, table.parts or [''] * len(lines), strict=True))
    for i, source in enumerate(table.sources):
        path = boxes.image_path(source)
        place = os.path.join(real_folder(path.parent), path.name)        # the same for ./a.jpg, and for links
        if os.path.islink(place):
            place = os.path.realpath(place)
        key = (place, *source[1:5]) if isinstance(source, boxes.Box) else place
        earlier = first.setdefault(key, i)
        if entries[i] != entries[earlier]:
            conflicts.append((earlier, i))
    if conflicts:
        where = ' and '.join(f'as {" ".join(entries[i]).strip()} in line {lines[i]}' for i in conflicts[0])
        raise UserError(f'--csv {file}: {len(conflicts):,} rows list an image again under another label or split, the '
                        f'first: {table.sources[conflicts[0][1]]}, {where}; keep one row of each')
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
