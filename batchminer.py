"""For criteria written for the public code of Roth et al., which import this name: the registry of batch_mining/."""
from batch_mining import BATCHMINERS as BATCHMINING_METHODS  # noqa: F401
from batch_mining import build
from utilities.loss_sums import Miner
from utilities.namespace import changed
from utilities.public import PAIRS, MinerOfLists


def select(batchminername, opt):
    """The miner as criteria of the public code call it: (batch, labels) -> a list of triples, or lists for PAIRS."""
    miner = build(changed(opt, batch_mining=batchminername), {})
    return miner and MinerOfLists(Miner(miner, batchminername, takes_masks=batchminername in PAIRS))
