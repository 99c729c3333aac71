"""The folder of one run, <save_path>/<dataset>/<group>_s<seed>/: created in one atomic move, and never overwritten."""
import importlib.metadata
import itertools
import os
import platform
import re
import shlex
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import yaml

from utilities.errors import UserError
from utilities.files import UniqueKeys, file_hash, read_yaml, write_text

PACKAGES = ('torch', 'torchvision', 'numpy', 'faiss-cpu', 'faiss-gpu', 'scikit-learn', 'timm', 'pretrainedmodels',
            'pillow', 'wandb', 'pytorch-metric-learning')
DUMPER = getattr(yaml, 'CSafeDumper', yaml.SafeDumper)       # ten times as fast, where PyYAML was built with it
LONGEST = 200                                                # bytes of a name; file systems take 255, with additions
LAST = 'checkpoint_last.pt'                                  # the state for an exact resumption


def savename(opt):
    return f'{opt.group}_s{opt.seed}' if opt.savename == 'group_plus_seed' else opt.savename


def check_names(opt):
    """Raises UserError for a --group or --savename that cannot be the name of a folder."""
    for flag, name in (('group', opt.group), ('savename', opt.savename)):
        if Path(name).name != name or name in ('', '..'):
            raise UserError(f'--{flag} {name}: it names a folder and must not hold a slash, or be empty, . or ..')
        if not name.isprintable():
            raise UserError(f'--{flag} {ascii(name)}: it names a folder and must not hold line breaks or other control '
                            'characters')
        if len(os.fsencode(name)) > LONGEST:
            raise UserError(f'--{flag} {name[:40]}...: it names a folder and has {len(os.fsencode(name))} bytes; at '
                            f'most {LONGEST} fit into the name of a file')


def create(opt, settings, arguments, description, chosen=(), files=None):
    """
    Makes the run's folder with config.yaml and splits.yaml in it; where the name is taken, _1, _2 ... is appended.
    Returns the folder.

    settings:    the flags, as configuration.recorded_settings gives them.
    arguments:   the arguments of the command line.
    description: the description of the splits, as datasets.splits.describe gives it.
    files:       {flag: checksum of the file that it names}.
    chosen:      the flags that were not given, and whose values the run may adapt to its data.
    """
    parent = Path(opt.save_path) / opt.dataset
    name = savename(opt)
    test = description['splits'].get('test', {})
    config = {'flags': settings, 'command': shlex.join(['python', 'main.py', *arguments]), 'versions': versions(),
              'git_commit': git_commit(), 'split_hash': description['hash'],
              'test_hash': test.get('hash'), 'test_images_hash': test.get('images_hash'),
              'image_hashes': description['image_hashes'], 'run_id': uuid.uuid4().hex[:8]}
    config |= {name: description[name] for name in ('splits_file', 'other_data') if name in description}
    if files:
        config['files'] = files
    config |= {'started': time.strftime('%Y-%m-%d %H:%M:%S'), 'chosen': [*chosen], 'resumed': []}
    unfinished = parent / f'.{name}.{uuid.uuid4().hex[:8]}'     # in containers, process ids repeat
    try:
        unfinished.mkdir(parents=True)
        write_yaml(unfinished / 'config.yaml', config)
        write_yaml(unfinished / 'splits.yaml', description)
        return settle(unfinished, parent / name)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise UserError(f'--save_path {opt.save_path}: no folder can be made there ({error.strerror})') from None


def settle(unfinished, folder):
    """Renames a folder to `folder`; if the name is taken, _1, _2 ... is appended. Returns the path."""
    for place in places(folder):
        if not place.exists():
            try:
                return unfinished.rename(place)
            except OSError:
                if not place.exists():       # another process may have taken the name in between
                    raise


def places(folder):
    """The names for a folder, in the order in which they are taken."""
    yield folder
    for number in itertools.count(1):
        yield folder.with_name(f'{folder.name}_{number}')


def require_same_data(folder, description):
    """Raises UserError where the run began with other data, other splits, or another file of --splits."""
    config = read(folder)
    ours = description.get('splits_file', {}).get('hash')
    before = config.get('splits_file', {}).get('hash')
    if ours != before:
        raise UserError(f'--resume {folder}: the content of the --splits file (hash {ours}) is not the content that '
                        f'the run began with (hash {before}); give that file')
    changed = changed_data(config, description)
    if changed:
        raise UserError(f'--resume {folder}: the data have {changed} than this run began with; --source_path must lead '
                        'to the same data')


def file_checksum(place):
    """The beginning of the SHA-256 hash of a file, or of a run folder's last checkpoint; None where there is none."""
    if not place:
        return None
    file = Path(place)
    if file.is_dir():
        file = file / LAST
    return file_hash(file)[:16] if file.is_file() else None


def require_same_files(folder, files):
    """Raises UserError where a file that a flag names has changed since the run began. files: as for create()."""
    before = read(folder).get('files', {})
    changed = [name for name in files if before.get(name, files[name]) != files[name]]
    if changed:
        raise UserError(f'--resume {folder}: the file of --{changed[0]} has changed since the run began; give the file '
                        'as it was then')


def changed_data(config, description):
    """
    How the data of a description by datasets.select differ from those in a run's config.yaml, such as 'other files,
    boxes'; '' where they are the same. Groups are compared where both runs read them.
    """
    if config['split_hash'] != description['hash']:
        return f'other classes or numbers of images (hash {description["hash"]}, not {config["split_hash"]})'
    before = config.get('image_hashes', {})
    now = description.get('image_hashes', {})
    changed = [name for name in before if now.get(name, before[name]) != before[name]]
    return f'other {", ".join(changed)}, or another order of images,' if changed else ''


def note_resumption(folder, settings, arguments, epoch, description, merged=()):
    """
    Records a resumption in config.yaml: its epoch, its command and the changed flags; writes splits.yaml. merged: the
    flags whose changes make it a run of several settings; the changes are listed with their first epoch.
    """
    write_yaml(folder / 'splits.yaml', description)
    config = read(folder)
    before = config['flags']
    changed = {name: {'from': before.get(name), 'to': value} for name, value in settings.items()
               if before.get(name) != value}
    config['resumed'].append({'at_epoch': epoch, 'command': shlex.join(['python', 'main.py', *arguments]),
                              'versions': versions(), 'changed_flags': changed})
    changed = {name: change for name, change in changed.items() if name in merged}
    if changed and epoch:                                    # a run without an epoch has had no other settings
        config['merged'] = [*config.get('merged', []), {'at_epoch': epoch, 'flags': changed}]
    write_yaml(folder / 'config.yaml', config | {'flags': settings})


def read(folder):
    """The run folder's config.yaml. Raises UserError where it is no run folder, or where the file is cut off."""
    file = Path(folder) / 'config.yaml'
    try:
        config = read_yaml(file.read_text(encoding='utf-8'), UniqueKeys)
    except OSError as error:
        raise UserError(f'{folder}: not a run folder: {file}: {error.strerror}') from None
    except ValueError as error:
        raise UserError(f'{file}: not readable: {error}') from None
    expected = {'flags': dict, 'split_hash': str, 'run_id': str, 'resumed': list}        # `resumed` is written last
    if not isinstance(config, dict) or any(not isinstance(config.get(name), kind) for name, kind in expected.items()):
        raise UserError(f'{file}: cut off, or not the config.yaml of a run folder; pass a file of flags with --config')
    beside = sorted(config.keys() & config['flags'].keys())
    if beside:
        raise UserError(f'{file}: the flag {beside[0]} stands beside flags:, where it has no effect; expected it below '
                        'flags: only')
    return config


def read_splits(folder):
    """
    The description of the splits in the splits.yaml of a run folder. Raises UserError where the file is missing, cut
    off or of another kind.
    """
    file = Path(folder) / 'splits.yaml'
    try:
        content = read_yaml(file.read_text(encoding='utf-8'))
        if any(len(part['classes']) != part['n_classes'] for part in content['splits'].values()):
            raise ValueError
    except OSError as error:
        raise UserError(f'{file}: {error.strerror}') from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f'{file}: cut off, or not the splits of a run; copy it again') from None
    return content


def write_yaml(file, content):
    write_text(file, yaml.dump(content, Dumper=DUMPER, sort_keys=False, allow_unicode=True, width=120))


def without_secrets(arguments, secrets):
    """The command line's arguments without the flags named in `secrets` and their values."""
    flags = {f'--{name}' for name in secrets}
    return [argument for before, argument in itertools.pairwise(['', *arguments])
            if before not in flags and argument.split('=')[0] not in flags]


def versions():
    """What the last digits of results depend on: the packages, the processor, its instructions, the threads."""
    import torch  # imported here, since reading run folders does not need it
    found = {'python': platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.cuda.is_available():
        found['cuda'] = torch.version.cuda
    return found | {'processor': processor(), 'instructions': torch.backends.cpu.get_cpu_capability(),
                    'threads': torch.get_num_threads()}


def processor():
    """The name of the processor, on which the last digits of results depend; if it is not known, the architecture."""
    try:
        if platform.system() == 'Darwin':
            return subprocess.run(['sysctl', '-n', 'machdep.cpu.brand_string'], capture_output=True, text=True,
                                  check=True).stdout.strip()
        found = re.search(r'^model name\s*:\s*(\S.*)$', Path('/proc/cpuinfo').read_text(), re.MULTILINE)
    except (OSError, ValueError, subprocess.SubprocessError):
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def git_commit():
    """The commit of the code, with a + where files differ from it; None outside a git checkout."""
    command = ['git', 'describe', '--always', '--match=', '--abbrev=64', '--dirty=+']         # a whole hash, no tags
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return None
    return found.stdout.strip() or None
