"""Criteria: the losses that networks are trained with."""
from criteria import margin, multisimilarity, proxyanchor, softmax, triplet
from utilities.errors import UserError, choose

CRITERIA = {
    'triplet': triplet,
    'margin': margin,
    'multisimilarity': multisimilarity,
    'softmax': softmax,
    'proxyanchor': proxyanchor,
}


def select(opt, batchminer):
    """The criterion --loss, with `batchminer` where it needs one. Raises UserError where the two do not go together."""
    module = choose(CRITERIA, opt.loss, '--loss')
    if not module.REQUIRES_BATCHMINER:
        return module.Criterion(opt)
    if batchminer is None:
        allowed = ', '.join(module.ALLOWED_MINING_OPS or ['any but none'])
        raise UserError(f'--loss {opt.loss} needs a miner: set --batch_mining ({allowed})')
    if module.ALLOWED_MINING_OPS is not None and opt.batch_mining not in module.ALLOWED_MINING_OPS:
        raise UserError(f'--loss {opt.loss} does not work with --batch_mining {opt.batch_mining}; choose from '
                        f'{", ".join(module.ALLOWED_MINING_OPS)}')
    return module.Criterion(opt, batchminer)
