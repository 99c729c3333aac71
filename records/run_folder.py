"""The folder of one run, <save_path>/<dataset>/<group>_s<seed>/: created in one atomic move, and never overwritten."""
import importlib.metadata
import itertools
import platform
import shlex
import shutil
import subprocess
import time
import uuid
import zlib
from pathlib import Path

import yaml

from utilities import machine
from utilities.command_line import read_yaml
from utilities.errors import UserError
from utilities.files import file_hash, remove_stale, write_text

PACKAGES = ('torch', 'torchvision', 'numpy', 'faiss-cpu', 'faiss-gpu', 'scikit-learn', 'timm', 'pretrainedmodels',
            'pillow', 'wandb', 'pytorch-metric-learning')
DUMPER = getattr(yaml, 'CSafeDumper', yaml.SafeDumper)       # ten times as fast, where PyYAML was built with it
LAST = 'checkpoint_last.pt'                                  # the state for an exact resumption
CHECKSUM = '# checksum '                                     # begins config.yaml and splits.yaml


def savename(opt):
    return f'{opt.group}_s{opt.seed}' if opt.savename == 'group_plus_seed' else opt.savename


def create(opt, settings, arguments, description, chosen=(), files=None):
    """
    Process 0 makes the run's folder with config.yaml and splits.yaml in it; where the name is taken, _1, _2 ... is
    appended. All processes return the folder.

    settings:    the flags, as parameters.recorded_settings gives them.
    arguments:   the arguments of the command line.
    description: the description of the splits, as datasets.splits.describe gives it.
    files:       {flag: checksum of the file that it names}.
    chosen:      the flags that were not given, and whose values the run may adapt to its data.
    """
    from utilities import processes  # imports torch, which reading run folders does not need
    return Path(processes.run_on_rank_zero(make, opt, settings, arguments, description, chosen, files))


def make(opt, settings, arguments, description, chosen, files):
    """The work of create()."""
    parent = Path(opt.save_path) / opt.dataset
    name = savename(opt)
    config = {'flags': settings, 'command': shlex.join(['python', 'main.py', *arguments]), 'versions': versions(),
              'git_commit': git_commit(), 'split_hash': description['hash'],
              **split_hashes(description), 'run_id': uuid.uuid4().hex[:8],
              **({'splits_file': description['splits_file']} if 'splits_file' in description else {}),
              **({'files': files} if files else {}),
              'started': time.strftime('%Y-%m-%d %H:%M:%S'), 'chosen': [*chosen], 'resumed': []}
    unfinished = parent / f'.{name}.{uuid.uuid4().hex[:8]}'     # in containers, process ids repeat
    try:
        remove_stale(parent / name)
        unfinished.mkdir(parents=True)
        write_checked(unfinished / 'config.yaml', config)
        write_checked(unfinished / 'splits.yaml', description)
        return settle(unfinished, parent / name)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise UserError(f'--save_path {opt.save_path}: no folder can be made there ({error.strerror})') from None


def settle(unfinished, folder):
    """Renames a folder to `folder`; if the name is taken, _1, _2 ... is appended. Returns the path."""
    for place in places(folder):
        if place.exists():
            continue
        try:
            return unfinished.rename(place)
        except OSError:
            if not place.exists():           # else another process took the name in between
                raise


def places(folder):
    """The names for a folder, in the order in which they are taken."""
    yield folder
    for number in itertools.count(1):
        yield folder.with_name(f'{folder.name}_{number}')


def require_same_data(folder, description):
    """
    Raises UserError where the run began with other data, other splits, or another file of --splits. Prints a note where
    an earlier version recorded no more than the class names and the numbers of images.
    """
    config = read(folder)
    ours, before = (part.get('splits_file', {}).get('hash') for part in (description, config))
    if ours != before:
        raise UserError(f'--resume {folder}: the content of the --splits file (hash {ours}) is not the content that '
                        f'the run began with (hash {before}); give that file')
    if changed := changed_data(config, description):
        raise UserError(f'--resume {folder}: the data have {changed} than this run began with; --source_path must lead '
                        'to the same data')
    if 'image_hashes' not in config:
        print(f'Note: {folder}: an earlier version of this program recorded only the names and sizes of the classes; '
              'that files, labels, groups and boxes are those that the run began with could not be checked.')


def file_checksum(place):
    """The beginning of the SHA-256 hash of a file, or of a run folder's last checkpoint; None where there is none."""
    file = Path(place or '/')
    file = file / LAST if file.is_dir() else file
    return file_hash(file)[:16] if file.is_file() else None


def require_same_files(folder, files):
    """Raises UserError where a file that a flag names has changed since the run began. files: as for create()."""
    before = read(folder).get('files', {})
    if changed := [name for name in files if before.get(name, files[name]) != files[name]]:
        raise UserError(f'--resume {folder}: the file of --{changed[0]} has changed since the run began; give the file '
                        'of that time')


def changed_data(config, description):
    """
    How the data of a description by datasets.select differ from those in a run's config.yaml, such as 'other files,
    boxes'; '' where they are the same. Groups and times are compared where both runs read them.
    """
    if config['split_hash'] != description['hash']:
        return f'other classes or numbers of images (hash {description["hash"]}, not {config["split_hash"]})'
    before, now = config.get('image_hashes', {}), description.get('image_hashes', {})
    changed = [name for name in before if now.get(name, before[name]) != before[name]]
    return f'other {", ".join(changed)}, or another order of images,' if changed else ''


def changes(before, now):
    """{flag: {'from': its value before, 'to': its value now}} for the settings `now` that differ from `before`."""
    return {name: {'from': before.get(name), 'to': value} for name, value in now.items() if before.get(name) != value}


def repair_splits(folder, description):
    """Writes splits.yaml again, with a note, where it is missing, damaged, or from another run."""
    file = Path(folder) / 'splits.yaml'
    try:
        found = read_checked(file)
    except (UserError, FileNotFoundError):
        found = None
    if not isinstance(found, dict) or found.get('hash') != description['hash']:
        write_checked(file, description)
        print(f'Note: {file} did not hold the splits of this run, and was written anew.')


def note_resumption(folder, settings, arguments, epoch, description, merged=()):
    """
    Records a resumption in config.yaml: its epoch, its command and the changed flags; repairs splits.yaml. merged: the
    flags whose changes make it a run of several settings; they are kept apart, with the epoch at which they begin.
    """
    repair_splits(folder, description)
    config = read(folder)
    config = split_hashes(description) | config
    changed = changes(config['flags'], settings)
    config['resumed'].append({'at_epoch': epoch, 'command': shlex.join(['python', 'main.py', *arguments]),
                              'versions': versions(), 'changed_flags': changed})
    changed = {name: change for name, change in changed.items() if name in merged}
    if changed and epoch:                                    # a run without an epoch has had no other settings
        config['merged'] = with_changes(config.get('merged', []), epoch, changed)
    write_checked(folder / 'config.yaml', config | {'flags': settings})


def with_changes(merged, epoch, changed):
    """
    `merged` of config.yaml, [{'at_epoch', 'flags': {flag: {'from', 'to'}}}], with the changes {flag: {'from', 'to'}}
    that begin at `epoch`. Earlier ones that were to begin there have never been in force.
    """
    planned = next((entry['flags'] for entry in merged if entry['at_epoch'] == epoch), {})
    flags = planned | {name: {'from': planned.get(name, change)['from'], 'to': change['to']}
                       for name, change in changed.items()}
    flags = {name: change for name, change in flags.items() if change['from'] != change['to']}
    before = [entry for entry in merged if entry['at_epoch'] != epoch]
    return before + ([{'at_epoch': epoch, 'flags': flags}] if flags else [])


def merged_in_words(config):
    """The changes of settings within a run, such as 'bs 8 from epoch 3'; '' for a run of one setting."""
    def words(value):
        return ' '.join(map(str, value)) if isinstance(value, list) else str(value)

    return '; '.join(', '.join(f'{name} {words(change["to"])}' for name, change in entry['flags'].items())
                     + f' from epoch {entry["at_epoch"]}' for entry in config.get('merged', []))


def first_flags(config):
    """The flags with which a run began."""
    flags = dict(config['flags'])
    for entry in reversed(config.get('merged', [])):
        flags |= {name: change['from'] for name, change in entry['flags'].items()}
    return flags


def read(folder):
    """The run folder's config.yaml. Raises UserError where it is no run folder."""
    file = Path(folder) / 'config.yaml'
    try:
        config = read_checked(file)
    except OSError as error:
        raise UserError(f'{folder}: not a run folder: {file}: {error.strerror}') from None
    if not isinstance(config, dict) or not {'flags', 'split_hash', 'run_id'} <= config.keys():
        raise UserError(f'{file}: not the config.yaml of a run folder; pass a file of flags with --config')
    if not are_changes(config.get('merged', [])):
        raise UserError(f'{file}: damaged, or edited: `merged` is not a list of changes of flags')
    return config


def are_changes(merged):
    """Whether a value has the form of `merged` in config.yaml, as for with_changes()."""
    return isinstance(merged, list) and all(
        isinstance(entry, dict) and isinstance(entry.get('at_epoch'), int) and isinstance(entry.get('flags'), dict)
        and all(isinstance(change, dict) and {'from', 'to'} <= change.keys() for change in entry['flags'].values())
        for entry in merged)


def test_hash(folder, config):
    """
    The hash of a run's test split, made from its classes and their numbers of images; None where it has none. config:
    its config.yaml. Where an earlier version wrote it, it has no such hash, and splits.yaml is read.
    """
    if 'test_hash' in config:
        return config['test_hash']
    file = Path(folder) / 'splits.yaml'
    return test_split_entry(read_checked(file)).get('hash') if file.is_file() else None


def split_hashes(description):
    """The entries of config.yaml on the images of all splits, and of the test split, of a description of the data."""
    test = test_split_entry(description)
    found = {'test_hash': test.get('hash'), 'test_images_hash': test.get('images_hash'),
             'image_hashes': description.get('image_hashes')}
    return {name: value for name, value in found.items() if value or name == 'test_hash'}


def test_split_entry(description):
    """The entry of the test split in a description by datasets.splits.describe; {} where there is no such split."""
    splits = description.get('splits') if isinstance(description, dict) else None
    test = splits.get('test') if isinstance(splits, dict) else None
    return test if isinstance(test, dict) else {}


def write_checked(file, content):
    """Writes a dict as YAML after a comment with a checksum of the text, in the first line so that no cut loses it."""
    text = as_yaml(content)
    write_text(file, f'{CHECKSUM}{text_checksum(text)}\n{text}')


def read_checked(file):
    """
    Reads a file written by write_checked and verifies its checksum. Raises UserError for a damaged file, OSError for
    one that cannot be opened.
    """
    try:
        text = file.read_text(encoding='utf-8')
        first, _, content = text.partition('\n')
        checksum, place = first.removeprefix(CHECKSUM), 'first'
        if not first.startswith(CHECKSUM.rstrip()):          # an earlier version wrote it in the last line
            content, found, checksum = text.rpartition(f'\n{CHECKSUM}')
            content, place = f'{content}\n', 'last' if found else None
        if place and checksum.strip() != text_checksum(content):
            raise UserError(f'{file}: damaged, or edited: its checksum does not fit its content. Copy it again; after '
                            f'an edit on purpose, remove its {place} line')
        return read_yaml(text)
    except ValueError as error:
        raise UserError(f'{file}: not readable: {" ".join(str(error).split())}') from None


def text_checksum(text):
    return f'{zlib.crc32(text.encode()):08x}'


def write_yaml(file, content):
    write_text(file, as_yaml(content))


def as_yaml(content):
    return yaml.dump(content, Dumper=DUMPER, sort_keys=False, allow_unicode=True, width=120)


def without_secrets(arguments, secrets):
    """The command line's arguments without the flags named in `secrets` and their values."""
    kept, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument.split('=')[0].removeprefix('--') in secrets:
            skip = '=' not in argument
        else:
            kept.append(argument)
    return kept


def versions():
    """What the last digits of results depend on: the packages, the processor, its instructions, the threads."""
    import torch  # imported here, since reading run folders does not need it
    found = {'python': platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    found |= {'cuda': torch.version.cuda} if torch.cuda.is_available() else {}
    return found | {'processor': machine.processor(), 'instructions': torch.backends.cpu.get_cpu_capability(),
                    'threads': torch.get_num_threads()}


def git_commit():
    """The commit of the code, with a + where files differ from it; None outside a git checkout."""
    def git(*arguments):
        return subprocess.run(['git', *arguments], cwd=Path(__file__).parent, capture_output=True, text=True)

    try:
        commit = git('rev-parse', 'HEAD')
    except OSError:
        return None
    if commit.returncode:
        return None
    return commit.stdout.strip() + ('+' if git('status', '--porcelain', '--untracked-files=no').stdout.strip() else '')
