"""Batch miners: which tuples of a batch a ranking loss is computed on."""
import types

import numpy as np

from batch_mining import (
    all_pairs,
    distance,
    easyhard,
    hard,
    intra_random,
    lifted,
    multisimilarity,
    npair,
    parametric,
    random_distance,
    random_triplets,
    rho_distance,
    semihard,
    softhard,
)
from flags.namespace import flags_of_losses, note
from utilities import libraries
from utilities.errors import UserError, choose, named_flags, undeclared, undeclared_flags

BATCHMINERS = {
    'random': random_triplets,
    'all': all_pairs,
    'semihard': semihard,
    'softhard': softhard,
    'hard': hard,
    'easyhard': easyhard,
    'distance': distance,
    'rho_distance': rho_distance,
    'multisimilarity': multisimilarity,
    'npair': npair,
    'lifted': lifted,
    'parametric': parametric,
    'intra_random': intra_random,
    'random_distance': random_distance,
    'none': None,
}


def select(opt, takes_miner=lambda part: True):
    """
    The miner --batch_mining; None for `none`; for a sum of losses a+b, a list of them, with None for a loss that needs
    no miner.

    takes_miner: (flags of one loss) -> whether it takes a miner; none is built for others.
    """
    flags = flags_of_losses(opt)
    used = [takes_miner(part) for part in flags]
    if any(used) or all(part.batch_mining == 'none' for part in flags):
        note(opt, 'batch_mining')
    given = libraries.arguments(opt, 'miner', [part.batch_mining for part in flags])
    miners = [build(part, own) if is_used else None for part, own, is_used in zip(flags, given, used, strict=True)]
    return miners if len(miners) > 1 else miners[0]


@undeclared_flags()
@named_flags()
def build(opt, pml_arguments):
    if opt.batch_mining.startswith(libraries.PML):
        return libraries.PmlMiner(opt, pml_arguments)
    module = choose(BATCHMINERS, opt.batch_mining, '--batch_mining')
    try:
        return module and module.BatchMiner(opt)
    except KeyError as error:                              # vars(opt)[f'loss_{opt.loss}_margin'] raises it
        name = ' '.join(map(str, error.args))
        if not name.startswith('loss_'):
            raise
        raise undeclared(name) from error


def check_feedback(images):
    """
    Raises UserError if the validation split does not define the metrics that a miner learns from. images: the split;
    None where there is none.
    """
    if images is None:
        raise UserError('--miner_parametric_adapt learns from validation images of the training classes: add '
                        '--use_tv_split')
    sizes = np.bincount(images.labels)
    if len(sizes) < 2 or sizes.max() < 2:
        raise UserError(f'--miner_parametric_adapt: the validation split has {len(sizes)} classes of at most '
                        f'{sizes.max()} images; it needs at least two of both: set a smaller --tv_split_perc')


def note_batch(miner, **batch):
    """Notes `indices` [B], `step` and `epoch` of a batch for the miners whose __call__ names them."""
    for one in miner if isinstance(miner, list) else [miner]:
        if hasattr(one, '__dict__'):
            one.of_step = types.SimpleNamespace(**batch)
