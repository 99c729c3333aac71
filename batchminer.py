"""For criteria written for the public code of Roth et al., which import this name: the registry of batch_mining/."""
from flags.namespace import changed
from utilities.mined import PAIRS, Miner, MinerOfLists


def __getattr__(name):
    """Returns BATCHMINING_METHODS, which is looked up late, so that files of batch_mining/ may import this file."""
    if name != 'BATCHMINING_METHODS':
        raise AttributeError(f'batchminer has no {name}; import the files of batch_mining/')
    from batch_mining import BATCHMINERS
    return BATCHMINERS


def select(batchminername, opt):
    """The miner as criteria of the public code call it: (batch, labels) -> a list of triples, or lists for PAIRS."""
    from batch_mining import build
    miner = build(changed(opt, batch_mining=batchminername), {})
    return miner and MinerOfLists(Miner(miner, batchminername, takes_masks=batchminername in PAIRS))
