"""Batch miners: which tuples of a batch a ranking loss is computed on."""
from batch_mining import distance, random_triplets, semihard, softhard
from utilities.errors import choose

BATCHMINERS = {
    'random': random_triplets,
    'semihard': semihard,
    'softhard': softhard,
    'distance': distance,
    'none': None,
}


def select(opt):
    """The miner --batch_mining; None for `none`."""
    module = choose(BATCHMINERS, opt.batch_mining, '--batch_mining')
    return module and module.BatchMiner(opt)
