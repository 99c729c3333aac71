"""
--splits FILE: the classes of each split from a file, such as the shifts of growing difficulty of ooDML (Milbich et al.,
NeurIPS 2021, https://arxiv.org/abs/2107.09562).
"""
from pathlib import Path

from utilities.errors import UserError
from utilities.files import UniqueKeys, file_hash, read_yaml

SPLITS = ('train', 'val', 'test')
OTHER_KEYS = {'fid'}                                                # how far ooDML's test classes are shifted
SHOWN = 5                                                           # number of classes that a message names


def apply(opt, table):
    """
    table -> {'train': [image index], 'val': [...] if the file has such a list, 'test': [...]}. Images of classes that
    the file does not list are in no split.

    Raises UserError if the file cannot be read, has no such lists or step, lists a class twice or one that the data do
    not have, or leaves the training or the test split without a class.
    """
    what = f'--splits {opt.splits}'
    names = sorted(set(table.classes))
    lists = read_split_lists(opt, what)
    numbers = [entry for listed in lists.values() for entry in listed if is_index(entry)]
    are_places = not any(name.isdecimal() for name in names)
    if numbers and are_places:
        print(f'Note: {what}: its numbers are places in the sorted list of the classes, from 0 ({names[0]}) to '
              f'{len(names) - 1} ({names[-1]})')
    split_of = {}
    for split, listed in lists.items():
        for entry in listed:
            name = str(entry)
            if is_index(entry) and are_places and 0 <= entry < len(names):
                name = names[entry]
            if name in split_of:
                raise UserError(f'{what}: the class {name} is listed twice, for {split_of[name]} and for {split}; '
                                'a class can be in one split only')
            split_of[name] = split
    unknown = [name for name in split_of if name not in set(names)]
    if unknown:
        more = f' and {len(unknown) - SHOWN} more' if len(unknown) > SHOWN else ''
        if are_places:
            also = f'or whole numbers from 0 to {len(names) - 1}, the places in the sorted list of the classes'
        else:
            also = ('in quotes where they begin with a zero, since some classes here have numbers as names, so that '
                    'numbers are not taken as places')
        raise UserError(f'{what}: --dataset {opt.dataset} has no class {", ".join(unknown[:SHOWN])}{more}; expected '
                        f'names such as {names[0]}, {also}')
    images = {split: [] for split in SPLITS if split in split_of.values()}
    for i, name in enumerate(table.classes):
        if name in split_of:
            images[split_of[name]].append(i)
    return images


def read_split_lists(opt, what):
    """
    {split: list of class names or numbers} in the file of --splits, of its --splits_step if it has several. Raises
    UserError for other content: a list that is missing or empty, a key that is unknown or occurs twice.
    """
    try:
        content = read_yaml(Path(opt.splits).read_text(encoding='utf-8'), UniqueKeys)      # JSON is YAML, too
    except OSError as error:
        raise UserError(f'{what}: {error.strerror}') from None
    except (ValueError, RecursionError) as error:
        raise UserError(f'{what}: not a JSON or YAML file in UTF-8 with keys that occur once ({error}); '
                        'docs/protocols.md says how to convert a pickle') from None
    steps = content if isinstance(content, dict) else {}
    if steps and all(isinstance(step, dict) for step in steps.values()):
        steps = {str(name): step for name, step in steps.items()}
        if opt.splits_step not in steps:
            raise UserError(f'{what} has the steps {", ".join(steps)}; choose one by --splits_step'
                            + (f', not {opt.splits_step}' if opt.splits_step else ''))
        content = steps[opt.splits_step]
    elif opt.splits_step:
        raise UserError(f'{what} has no steps: leave --splits_step {opt.splits_step} out')
    found = {split: content[split] for split in SPLITS if split in content} if isinstance(content, dict) else {}
    unknown = [str(key) for key in content if key not in {*SPLITS, *OTHER_KEYS}] if found else []
    if unknown:
        raise UserError(f'{what}: unknown: {", ".join(unknown[:SHOWN])}; expected the lists train, test and, '
                        'optionally, val')
    for split in ('train', 'test', *found):
        entries = found.get(split)
        is_list = isinstance(entries, list) and all(isinstance(entry, str) or is_index(entry) for entry in entries)
        if not is_list or not entries:
            problem = 'empty' if is_list else 'not such a list'
            if entries is None:
                problem = 'missing'
            raise UserError(f'{what}: expected lists of class names or numbers, train and test, and optionally val, '
                            f'none of them empty; {split} is {problem}')
    return found


def is_index(entry):
    return isinstance(entry, int) and not isinstance(entry, bool)


def describe(opt):
    """What splits.yaml says of the file: its name, the hash of its content, and the step."""
    return {'name': Path(opt.splits).name, 'hash': file_hash(opt.splits)[:16], 'step': opt.splits_step}
