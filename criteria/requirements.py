"""What the losses of a run need, as far as its flags tell before they are built: miners, inputs, pairs of a class."""
import argparse

import criteria
from utilities import public, torch_losses
from utilities.errors import choose
from utilities.loss_sums import parts

COSTLY = ('feature_maps', 'images', 'teacher_batch')            # the keywords that a criterion must ask for


def loss_module(loss):
    """The file of a loss; None for the losses of a library."""
    return criteria.CRITERIA.get(loss)


def nested_flags(loss):
    """The flags that name the losses inside a loss: REQUIRES_CRITERIA of its file."""
    flags = getattr(loss_module(loss), 'REQUIRES_CRITERIA', ())
    return () if flags is True else flags or ()


def with_nested_losses(flags):
    """The losses of a sum, one namespace each, and the losses inside them."""
    nested = [argparse.Namespace(**vars(part) | {'loss': name}) for part in flags
              for name in dict.fromkeys(getattr(part, flag) for flag in nested_flags(part.loss))]
    return [*flags, *nested]


def takes_miner(part):
    """Whether a loss, or one inside it, takes a miner."""
    return any(getattr(loss_module(one.loss), 'REQUIRES_BATCHMINER', True) for one in with_nested_losses([part])
               if not one.loss.startswith(torch_losses.PREFIX))


def with_used_miners(opt):
    """The flags with --batch_mining none for each loss of a sum that takes no miner, so that none is built for it."""
    used = [part.batch_mining if takes_miner(part) else 'none' for part in parts(opt)]
    return argparse.Namespace(**vars(opt) | {'batch_mining': '+'.join(used)})


def ranks(opt):
    """
    Whether the flags say that evaluation ranks by a distance of the criterion; the built one decides, by its method
    ranking_embeddings. A loss around others has the distance of its first.
    """
    names = [getattr(part, [*nested_flags(part.loss), 'loss'][0]) for part in parts(opt)]
    return any(wrapper.ranks for wrapper in criteria.wrapping.chosen(opt)) or any(
        hasattr(file.Criterion, 'ranking_embeddings') for file in map(loss_module, names) if file)


def required_inputs(opt, criterion=None):
    """The costly inputs of the criterion: what its losses and the wrappers around them ask for."""
    found = set().union(*(asked_for(part, part.loss) for part in with_nested_losses(parts(opt))))
    for wrapper in criteria.wrapping.chosen(opt):
        found |= {*getattr(wrapper.file, 'REQUIRES_INPUTS', ())}
    if criterion and any(getattr(module, 'REQUIRES_MAPS', False) for module in criterion.modules()):
        found.add('feature_maps')                              # the way to ask before REQUIRES_INPUTS existed
    return found


def asked_for(opt, loss):
    """REQUIRES_INPUTS of a loss's file: a list of COSTLY names, or {name: the flag with which it is needed}."""
    file = loss_module(loss)
    names = getattr(file, 'REQUIRES_INPUTS', ())
    for name in names:
        choose(dict.fromkeys(COSTLY), name, f'REQUIRES_INPUTS of --loss {loss}:')
    asked = [name for name in names if not isinstance(names, dict) or getattr(opt, names[name])]
    gets_maps = hasattr(file, 'Criterion') and public.takes_maps(file) and getattr(opt, 'n_maps', True) is not None
    return [*asked, 'feature_maps'] if gets_maps else asked


def need_positives(opt):
    """The names of the losses that compare samples of a batch, and are zero in a batch without positive pairs."""
    def needs(file):
        has_memory = opt.xbm_size and getattr(file, 'SUPPORTS_MEMORY', False)
        return not has_memory and (file.REQUIRES_BATCHMINER or not getattr(file, 'REQUIRES_OPTIM', True))
    losses = [part.loss for part in with_nested_losses(parts(opt))]
    return [loss for loss in losses if loss_module(loss) and needs(loss_module(loss))]
