"""
Which parts of a public code base work here unedited: criteria, miners, samplers and networks that are written for the
public code of Roth et al.

python -m benchmarks.parity FOLDER [FLAGS OF main.py]

FOLDER is a checkout with the folders criteria, batch_mining or batchminer, datasampler, architectures, or some of them.
Each file is registered in a process of its own. If this program has a part of the same name, the file is registered as
public_NAME and reads the flags of that part. It trains two epochs of one step (on a few small images, with the network
conv4, unless the flags say otherwise). A network begins with random weights, and downloads none. Nothing is written
into the folder or into this checkout.
"""
import argparse
import functools
import importlib
import importlib.util
import re
import sys
import tempfile
import traceback
from pathlib import Path

import torch

from benchmarks.runs import draw_classes, forked, main_py, preload
from utilities.errors import UserError, exit_code

LIMIT = 300                                                           # seconds for one part
PACKAGES = {'criteria': 'criteria', 'batch_mining': 'batch_mining', 'batchminer': 'batch_mining',
            'datasampler': 'datasampler', 'architectures': 'architectures'}
REGISTRIES = {'criteria': 'CRITERIA', 'batch_mining': 'BATCHMINERS', 'datasampler': 'SAMPLERS',
              'architectures': 'ARCHITECTURES'}
CLASSES = {'criteria': 'Criterion', 'batch_mining': 'BatchMiner', 'datasampler': 'Sampler', 'architectures': 'Network'}
FLAGS = ('--dataset folder --arch conv4_normalize --not_pretrained --input_size 16 --bs 12 --samples_per_class 2 '
         '--lr 0.001 --n_epochs 2 --iterations_per_epoch 1 --embed_dim 16 --kernels 0 --device cpu --pictures none '
         '--no_train_metrics --evaluation_metrics e_recall@1 --loss triplet --batch_mining random '
         '--data_batchmatch_bigbs 24').split()


def find_parts(folder):
    """{name of a folder of parts: its files}, without files that have helpers only."""
    found = {name: sorted(path for path in (folder / name).glob('*.py')
                          if re.search(rf'^class {CLASSES[package]}\b', path.read_text(), re.MULTILINE))
             for name, package in PACKAGES.items() if (folder / name).is_dir()}
    if not any(found.values()):
        raise UserError(f'{folder}: expected a folder with {", ".join(PACKAGES)}, or some of them')
    return found


def register(package, file):
    """Adds the file to the registry of the package; returns its name there, and its module."""
    registry = getattr(importlib.import_module(package), REGISTRIES[package])
    name = f'public_{file.stem}' if file.stem in registry else file.stem
    spec = importlib.util.spec_from_file_location(f'{package}.{name}', file)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    registry[name] = module
    return name, module


def selecting(package, name, module):
    """The flags that select the part; for a criterion with a miner that it allows."""
    if package != 'criteria':
        flag = {'batch_mining': '--batch_mining', 'datasampler': '--data_sampler', 'architectures': '--arch'}[package]
        return [flag, name] + ['--input_size', '64'] * (package == 'architectures')
    allowed = module.ALLOWED_MINING_OPS or ['distance']
    miner = 'distance' if 'distance' in allowed else allowed[0]
    return ['--loss', name, '--batch_mining', miner if module.REQUIRES_BATCHMINER else 'none']


def without_downloads(folder):
    """Random weights stay where a network would download others. folder: for what stands in place of a download."""
    load = torch.nn.Module.load_state_dict
    torch.hub.set_dir(folder)
    torch.hub.download_url_to_file = lambda url, file, *args, **flags: torch.save({}, file)
    torch.nn.Module.load_state_dict = lambda self, state, *args, **flags: state and load(self, state, *args, **flags)


def train(package, file, flags, folder):
    """Trains with the part, as the script main.py does. folder: for what stands in place of a download."""
    sys.dont_write_bytecode = True
    without_downloads(folder)
    try:
        main_py([*FLAGS, *selecting(package, *register(package, file)), *flags])
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        print(f'{type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno})', file=sys.stderr)
        sys.exit(1)


def outcome(*arguments):
    """None if the part trains, or a sentence about why it does not. arguments: as for train()."""
    code, printed = forked(functools.partial(train, *arguments), LIMIT)
    if code is None:
        return f'it takes more than {LIMIT} seconds'
    lines = [line for line in printed.splitlines() if line.strip()] or [f'ended by {code}']
    reason = next((line for line in lines if line.startswith('main.py: ')), lines[-1])
    return reason.removeprefix('main.py: error: ') if code else None


def main(arguments):
    parser = argparse.ArgumentParser(prog='benchmarks.parity', allow_abbrev=False,
                                     description=__doc__.split('\n\n')[0].strip())
    parser.add_argument('folder', type=Path, metavar='FOLDER')
    opt, flags = parser.parse_known_args(arguments)
    found = find_parts(opt.folder.resolve())
    preload()
    with tempfile.TemporaryDirectory() as scratch:
        draw_classes(Path(scratch) / 'data' / 'images', 12, 6)
        own = ['--source_path', f'{scratch}/data', '--save_path', f'{scratch}/runs', *flags]
        for name, files in found.items():
            failed = {}
            for file in files:
                reason = outcome(PACKAGES[name], file, own, f'{scratch}/downloads')
                if reason:
                    failed[file.name] = reason
            print(f'{opt.folder / name}: {len(files) - len(failed)} of {len(files)}')
            for file, reason in failed.items():
                print(f'  {file}: {reason}', flush=True)


if __name__ == '__main__':
    sys.exit(exit_code('benchmarks.parity', lambda: main(sys.argv[1:])))
