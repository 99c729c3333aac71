"""Images of your own: <source_path>/images/<class>/*, or those that --csv FILE lists."""
import csv
from pathlib import Path

from datasets.base import ImageTable, class_folders, find
from utilities.errors import UserError

PARTS = ('train', 'val', 'test', 'query', 'gallery')


def load(opt):
    if opt.download:
        raise UserError('--download: --dataset folder is your own data; there is nothing to download')
    if opt.csv:
        return listed(Path(opt.csv), Path(opt.source_path))
    return class_folders(find(opt, 'folder', ['images'], '<class>/*.jpg (or .png ...), one folder per class'))


def listed(file, source_path):
    """The images of a CSV file with columns path, label and, optionally, split; paths are relative to source_path."""
    try:
        with open(file, newline='', encoding='utf-8-sig') as opened:
            rows = list(csv.DictReader(opened))
    except OSError as error:
        raise UserError(f'--csv {file}: {error.strerror}') from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f'--csv {file}: not a CSV file in UTF-8 ({error})') from None
    columns = list(rows[0]) if rows else []
    if not {'path', 'label'} <= set(columns):
        raise UserError(f'--csv {file}: expected a header with the columns path,label[,split] and one row per image, '
                        + (f'found the columns {", ".join(map(str, columns))}' if columns else 'found no row'))
    for number, row in enumerate(rows, start=2):
        if not row['path'] or not row['label'] or ('split' in row and row['split'] not in PARTS):
            raise UserError(f'--csv {file}, line {number}: path and label must not be empty'
                            + (f', and split must be one of {", ".join(PARTS)}' if 'split' in row else ''))
    return ImageTable([source_path / row['path'] for row in rows], [row['label'] for row in rows],
                      [row['split'] for row in rows] if 'split' in columns else None)
