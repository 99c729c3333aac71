"""--loss a+b --batch_mining c+d: the flags as each part of a sum sees them."""
import argparse

from utilities.errors import UserError


def parts(opt):
    """
    One namespace per loss of the sum --loss, with its own `loss` and `batch_mining`; a single miner serves all losses.

    Raises UserError where the numbers of losses and miners differ.
    """
    losses, miners = opt.loss.split('+'), opt.batch_mining.split('+')
    miners = miners * len(losses) if len(miners) == 1 else miners
    if len(miners) != len(losses):
        raise UserError(f'--batch_mining {opt.batch_mining}: give one miner, or one for each loss of --loss {opt.loss} (none '
                        'where it needs none)')
    return [argparse.Namespace(**vars(opt) | {'loss': loss, 'batch_mining': miner})
            for loss, miner in zip(losses, miners, strict=True)]
