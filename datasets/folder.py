"""
Images of your own: <source_path>/images/<class>/*, <source_path>/images/<super-class>/.../<class>/*, official parts
such as <source_path>/train/<class>/* and <source_path>/test/<class>/*, or the images that --csv FILE lists.
"""
import os
import re
from collections import ChainMap, Counter
from pathlib import Path

from datasets import decoding, image_list
from datasets.base import ImageTable, class_folders, files_in, find, image_files, note_similar_labels, subfolders
from utilities.errors import UserError

PART_OF_FOLDER = {name: part for name, part in image_list.PARTS.items() if part != 'distractor'}
PART_OF_PERSONS = {'bounding_box_train': 'train', 'query': 'query', 'bounding_box_test': 'gallery'}
WHERE = ('images/<class>/*.jpg (or .png ...), also in folders of super-classes; or train/<class>/*.jpg and '
         'test/<class>/*.jpg; or bounding_box_train/, bounding_box_test/ and query/ of Market-1501; or images anywhere '
         'that --csv FILE lists')


def load(opt):
    if opt.csv:
        return image_list.read(Path(opt.csv), Path(opt.source_path), opt.csv_columns,
                               with_groups='across' in opt.eval_level)
    source = Path(opt.source_path)
    table = None
    if os.path.isdir(source) and not os.path.exists(source / 'images'):
        table = official_split(source, opt)
        if not table:
            require_no_deeper(source)
    if not table:
        images = find(opt, 'folder', ['images'], WHERE)
        table = official_split(images, opt) or class_table(images)
    if {*table.classes} == {'.'} and not opt.unsupervised and not opt.evaluate:
        raise UserError(f'{source / "images"}: its images are in no class folders; make a folder for each class, list '
                        'the images in a --csv, or train without labels by --unsupervised')
    note_similar_labels(f'--source_path {opt.source_path}', set(table.classes))
    return table


def require_no_deeper(source):
    """Raises UserError where --source_path is the folder above one with official parts or images/."""
    for folder in subfolders(source):
        names = {path.name for path in subfolders(folder)}
        found = [*PART_OF_PERSONS] if {*PART_OF_PERSONS} <= names else [
            name for name in sorted(names) if name == 'images' or name.lower() in PART_OF_FOLDER]
        if found:
            raise UserError(f'--source_path {source}: it has no images/, train/ or test/, but {folder} has '
                            f'{", ".join(found)}: give --source_path {folder}')


def class_table(folder):
    """The table of a folder of class folders, or of super-class folders that contain class folders."""
    return class_folders(folder) if any(map(image_files, subfolders(folder))) else nested(folder)


def official_split(folder, opt):
    """
    The table of an official split: its parts are folders with a name in PART_OF_FOLDER that contain folders of classes
    or super-classes, or the folders of Market-1501. None where there are no such folders. Prints a note on the first
    kind, unless `opt` names a split. Raises UserError where other folders beside the parts contain images or classes.
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
    if not opt.split_scheme and not opt.splits:
        print(f'Note: {folder}: official split by the {names}; --split_scheme half would split all classes')
    levels = zip(*(table.levels for table in tables.values()), strict=False)
    joined = ImageTable([], [], [], [dict(ChainMap(*level)) for level in levels], files_in(folder))
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
    or super-class is its path below `folder`. Hidden folders are left out. Raises UserError if class depths differ.
    """
    folders = sorted(Path(path) for path, _ in decoding.folders_below(folder))
    table = ImageTable.from_folders({path: path.relative_to(folder).as_posix() for path in folders})
    depths = {name.count('/'): name for name in table.classes}
    if len(depths) > 1:
        one, other, *_ = depths.values()
        raise UserError(f'{folder}: the classes must all be in the same number of folders of super-classes, unlike '
                        f'{one} and {other}')
    names = sorted(set(table.classes))
    table.levels = [{name: name.rsplit('/', level)[0] for name in names}
                    for level in range(1, max(depths, default=0) + 1)] or [{}]
    table.ignored = [path for path in table.ignored if not path.is_dir()]
    return table
