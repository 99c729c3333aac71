"""What losses and miners are put together from: sums of losses, and miners whose pairs become triplets."""
import argparse

import torch

from utilities.errors import UserError


def parts(opt):
    """
    One namespace per loss of the sum --loss a+b, with its own `loss` and `batch_mining`; one miner serves all losses.

    Raises UserError where the numbers of losses and miners differ.
    """
    losses, miners = opt.loss.split('+'), opt.batch_mining.split('+')
    miners = miners * len(losses) if len(miners) == 1 else miners
    if len(miners) != len(losses):
        raise UserError(f'--batch_mining {opt.batch_mining}: give one miner, or one for each loss of --loss {opt.loss} '
                        '(none where it needs none)')
    return [argparse.Namespace(**vars(opt) | {'loss': loss, 'batch_mining': miner})
            for loss, miner in zip(losses, miners, strict=True)]


def triplets_of(positives, negatives):
    """Masks of positive and negative pairs, two bool [B, B] -> every triplet that they make: [T, 3]."""
    pairs = positives.nonzero()                                                              # [P, 2]
    place, negative = negatives[pairs[:, 0]].nonzero().T
    return torch.cat([pairs[place], negative[:, None]], dim=1)


class Triplets:
    """A miner of triplets [T, 3], whatever `batchminer` returns; `last` are those of the last batch."""

    def __init__(self, batchminer):
        self.batchminer, self.last = batchminer, None

    def __call__(self, batch, labels):
        mined = self.batchminer(batch, labels)
        if isinstance(mined, tuple) and all(getattr(mask, 'dtype', None) == torch.bool for mask in mined):
            self.last = triplets_of(*mined)
        else:
            self.last = torch.as_tensor(mined, device=batch.device).long().reshape(-1, 3)
        return self.last
