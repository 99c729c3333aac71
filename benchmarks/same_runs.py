"""
Show that a change of the code leaves the numbers of runs as they were.

Tiny runs of every loss, miner, sampler, wrapper and sum, with micro-batches and resumed: their log.csv must be equal in
every column but `seconds`.

python -m benchmarks.same_runs record FOLDER      before the change
python -m benchmarks.same_runs compare FOLDER     after it: trains the same runs again, and continues the recorded ones
"""
import argparse
import csv
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from tqdm import tqdm

from batch_mining import BATCHMINERS
from benchmarks.runs import draw_classes, forked, main_py, preload
from criteria import CRITERIA
from datasampler import SAMPLERS

LIMIT = 600                                     # seconds after which a run counts as failed
TINY = ('--dataset folder --arch conv4_normalize --not_pretrained --input_size 16 --embed_dim 16 --bs 32 '
        '--samples_per_class 4 --lr 0.001 --iterations_per_epoch 3 --n_epochs 2 --kernels 0 --device cpu '
        '--pictures none --no_train_metrics --evaluation_metrics e_recall@1 map_at_r nmi --use_tv_split').split()
OF_MASKS = {'npair': 'npair', 'lifted': 'lifted', 'liftedstructure': 'lifted'}
MORE_FLAGS = {'s2sd': ['--loss_s2sd_target_dims', '24', '32'],
              'hier': ['--loss_hier_n_proxies', '16', '--loss_hier_k', '8'], 'nir': ['--loss_nir_lrmulti', '1']}
WRAPPED = {
    'xbm': '--loss contrastive --batch_mining random --xbm_size 64 --xbm_start 1',
    'direction': '--loss triplet --batch_mining semihard --dr_weight 0.3',
    'matryoshka': '--loss multisimilarity --matryoshka 4 8 16',
    'matryoshka_mined': '--loss triplet --batch_mining semihard --matryoshka 4 8 16 --matryoshka_mine_prefixes',
    'cascade': '--loss triplet --batch_mining semihard --cascade 1 2 --embed_dim 24',
    'daml': '--loss triplet --batch_mining semihard --daml --daml_layers 16',
    'distill_ema': '--loss multisimilarity --distill ema --ema 0.9',
    'sum': '--loss triplet+softmax --batch_mining semihard --loss_weights 1 0.5',
    'sum_of_miners': '--loss margin+triplet+multisimilarity --batch_mining distance+semihard+none',
    'sum_of_wrapped': '--loss contrastive+multisimilarity --batch_mining random --xbm_size 64 --xbm_start 1 '
                      '--dr_weight 0.2',
    'torch': '--loss torch:CrossEntropyLoss',
    'pml': '--loss pml:ContrastiveLoss --batch_mining random',
    'pml_miner': '--loss triplet --batch_mining pml:MultiSimilarityMiner',
    'micro': '--loss multisimilarity --micro_bs 8',
    'micro_of_miner': '--loss margin --batch_mining distance --micro_bs 8',
    'micro_of_sum': '--loss triplet+softmax --batch_mining semihard --micro_bs 8',
    'views': '--loss ntxent --views 2 --samples_per_class 2',
    'unsupervised': '--loss ntxent --unsupervised --views 2 --samples_per_class 1 --data_sampler image_random',
    'pads': '--loss margin --batch_mining parametric --miner_parametric_adapt --miner_parametric_update_every 2',
    'optimizers': '--loss proxynca --optim adamw --loss_optim sgd --clip_grad 1 --scheduler cosine',
    'storage': '--loss multisimilarity --data_sampler fid_batchmatch --data_batchmatch_bigbs 64 --data_mb_mom 0.5',
}


def runs():
    """{name: flags} of every run."""
    found = {}
    for name, module in CRITERIA.items():
        allowed = module.ALLOWED_MINING_OPS or ['distance']
        miner = ['--batch_mining', OF_MASKS.get(name, allowed[0])] if module.REQUIRES_BATCHMINER else []
        found[f'loss_{name}'] = ['--loss', name, *miner, *MORE_FLAGS.get(name, ())]
    for name in BATCHMINERS:
        loss = OF_MASKS.get(name, 'softmax' if name == 'none' else 'margin')
        found[f'miner_{name}'] = ['--loss', loss, '--batch_mining', name]
    for name in SAMPLERS:
        found[f'sampler_{name}'] = ['--loss', 'margin', '--data_sampler', name, '--data_batchmatch_bigbs', '64']
    return found | {name: flags.split() for name, flags in WRAPPED.items()}


def draw_images(folder):
    draw_classes(folder / 'images', 32, 10, side=16, noise=90, n_superclasses=4)


def train(folder, name, flags):
    """Trains one run in a process of its own; returns its exit code and what it printed."""
    arguments = [*TINY, *flags, '--source_path', folder, '--save_path', folder, '--group', name]
    return forked(partial(main_py, arguments), LIMIT)


def continue_run(run_folder):
    return forked(partial(main_py, ['--resume', run_folder, '--n_epochs', '3']), LIMIT)


def read_log(folder):
    """The rows of log.csv without the column seconds; [] without the file."""
    if not (folder / 'log.csv').exists():
        return []
    with open(folder / 'log.csv', newline='') as file:
        return [{name: value for name, value in row.items() if name != 'seconds'} for row in csv.DictReader(file)]


def record(folder):
    """
    Trains every run, and a copy of each that is longer by an epoch, continued from its checkpoint. Returns whether one
    failed.
    """
    any_failed = False
    for name, flags in tqdm(runs().items()):
        longer = folder / 'longer' / 'folder' / f'{name}_s1'
        if longer.exists():
            continue
        code, printed = train(folder, name, flags)
        if code == 0:
            shutil.copytree(folder / 'folder' / f'{name}_s1', longer)
            code, printed = continue_run(longer)
        if code != 0:
            any_failed = True
            shutil.rmtree(longer, ignore_errors=True)
            print(f'{name}: {printed[-800:]}')
    return any_failed


def compare(folder, names):
    """Trains every recorded run again, and continues a copy of each. Prints which differ; returns whether any does."""
    n_equal = 0
    different = []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        draw_images(scratch)
        for name in tqdm(names):
            reference = folder / 'folder' / f'{name}_s1'
            _, of_new = train(scratch, name, runs()[name])
            copy = scratch / 'continued' / 'folder' / f'{name}_s1'
            shutil.copytree(reference, copy)
            _, of_continued = continue_run(copy)
            pairs = {'new run': (of_new, reference, scratch / 'folder' / f'{name}_s1'),
                     'continued': (of_continued, folder / 'longer' / 'folder' / f'{name}_s1', copy)}
            for kind, (printed, one, other) in pairs.items():
                before = read_log(one)
                after = read_log(other)
                if before == after:
                    n_equal += 1
                    continue
                what = sorted({column for a, b in zip(before, after, strict=False)
                               for column in a.keys() | b.keys() if a.get(column) != b.get(column)})
                if len(before) != len(after):
                    what = f'{len(before)} rows were recorded, now there are {len(after)}'
                different.append(f'{name}, {kind}: {what}\n{printed[-800:]}')
    print('\n'.join(different))
    print(f'{n_equal} equal, {len(different)} different')
    return bool(different)


def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('action', choices=['record', 'compare'])
    parser.add_argument('folder', type=Path)
    parser.add_argument('--only', nargs='+', metavar='WORD', help='runs whose names have one of these words')
    opt = parser.parse_args()
    os.environ['WANDB_MODE'] = 'offline'
    preload()
    if opt.action == 'record':
        opt.folder.mkdir(parents=True, exist_ok=True)
        draw_images(opt.folder)
        return record(opt.folder)
    recorded = [name for name in runs() if (opt.folder / 'longer' / 'folder' / f'{name}_s1').exists()
                and (not opt.only or any(word in name for word in opt.only))]
    if not recorded:
        parser.error(f'{opt.folder}: no run is recorded there{" whose name has a word of --only" * bool(opt.only)}')
    return compare(opt.folder, recorded)


if __name__ == '__main__':
    sys.exit(run())
