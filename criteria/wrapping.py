"""
From flags to a criterion: each loss of the sum --loss a+b, what is put around it, the sum, and what is put around that.

A wrapper is a file with a function around(opt, build, miner) -> criterion. It calls build(opt, miner) for what is
inside it, once or several times, with the flags and the miner that the inside shall have. It may have a function
problem(opt), which returns a sentence about values of its flags that cannot work, or None. A module with the attribute
`criterion` hands on what the criterion inside it has: its optimizer groups, its distance and its log.
"""
import argparse
import functools
import types
from collections.abc import Callable
from typing import NamedTuple

import criteria
from criteria import (
    cascade,
    class_weights,
    cross_batch_memory,
    deep_adversarial,
    direction_regularisation,
    distillation,
    language_guidance,
    mahalanobis,
    matryoshka,
)
from criteria.weighted_sum import WeightedSum
from utilities import pml, public, torch_losses
from utilities.errors import UserError, choose
from utilities.loss_sums import Miner, finished, parts
from utilities.parameter_groups import own_groups

COSTLY = ('feature_maps', 'images', 'teacher_batch')            # the keywords that a criterion must ask for


# The losses that a wrapper fits, each given as its file, as file_of() finds it

def file_of(opt):
    """
    The file of --loss, a single name. For the losses of a library: None, or utilities/pml.py if pytorch-metric-learning
    has the loss and it has a miner.
    """
    if opt.loss.startswith(pml.PREFIX) and opt.batch_mining != 'none':
        return pml
    return criteria.CRITERIA.get(opt.loss)


def takes_pairs(loss):
    """Whether a loss takes pairs only, from miners that return masks here and lists in the public code."""
    allowed = {*(getattr(loss, 'ALLOWED_MINING_OPS', None) or ())}
    return bool(allowed) and allowed <= {*public.PAIRS}


def takes_memory(loss):
    return getattr(loss, 'SUPPORTS_MEMORY', False)


def takes_triplets(loss):
    return getattr(loss, 'REQUIRES_BATCHMINER', False) and not takes_pairs(loss)


def takes_tuples(loss):
    """Whether a loss is computed on the tuples that its miner gives it."""
    return loss is pml or takes_triplets(loss)


def takes_synthetic_triplets(loss):
    """Whether a loss of triplets can take embeddings that have no image."""
    of_images = getattr(loss, 'REQUIRES_INPUTS', ()) or loss and 'indices' in public.forward_parameters(loss.Criterion)
    return takes_triplets(loss) and not of_images


def takes_embeddings_only(loss):
    """Whether a loss is a function of the embeddings: it takes neither other inputs nor losses inside it."""
    beyond = {*COSTLY, 'batch_features', 'avg_batch_features', 'f_embed'}
    names = {*public.forward_parameters(loss.Criterion)} if loss else set()
    return not (names & beyond or getattr(loss, 'REQUIRES_INPUTS', ()) or getattr(loss, 'REQUIRES_CRITERIA', ()))


def gives_values_of_samples(loss):
    """Whether a loss returns one value per sample, with reduction='none'."""
    return bool(loss) and 'reduction' in public.forward_parameters(loss.Criterion)


def every_loss(loss):
    return True


def takes_masks(loss):
    """Whether a loss's miner may give masks of pairs; otherwise it gives triplets."""
    return loss in (None, pml) or getattr(loss, 'ACCEPTS_MASKS', False) or takes_pairs(loss)


class Wrapper(NamedTuple):
    """
    flags:       it is put around a loss if all of them are set.
    file:        the module with around().
    fits:        (file of a loss) -> whether it can be around this loss.
    not_with:    {flag: why it does not work with this flag}.
    takes_masks: (file of a loss) -> whether its miner gives it masks of pairs.
    nested:      whether it is put around the losses inside a loss, too.
    everywhere:  whether it must fit every loss of a sum; otherwise it is put around those that it fits, at least one.
    ranks:       whether evaluation ranks by its distance.
    """
    flags: tuple
    file: types.ModuleType
    fits: Callable = every_loss
    not_with: dict = {}
    takes_masks: Callable = takes_masks
    nested: bool = False
    everywhere: bool = False
    ranks: bool = False


# From the inside to the outside
AROUND_A_LOSS = [
    Wrapper(('class_weights',), class_weights, gives_values_of_samples, everywhere=True),
    Wrapper(('xbm_size',), cross_batch_memory, takes_memory, nested=True),
    Wrapper(('dr_weight',), direction_regularisation, takes_triplets, nested=True),
    Wrapper(('cascade',), cascade, takes_tuples,
            takes_masks=lambda loss: loss is pml or getattr(loss, 'OF_PAIRS', False)),
    Wrapper(('daml',), deep_adversarial, takes_synthetic_triplets, takes_masks=lambda loss: False, not_with={
        'cascade': 'synthetic negatives have features of the last block only',
        'xbm_size': 'they would be stored in the memory bank'}),
    Wrapper(('matryoshka',), matryoshka, takes_embeddings_only, everywhere=True, not_with={
        'cascade': 'its embedding consists of several',
        'daml': 'synthetic negatives have features of the whole embedding'}),
]
AROUND_THE_SUM = [
    Wrapper(('mahalanobis',), mahalanobis, takes_embeddings_only, everywhere=True, ranks=True, not_with={
        'cascade': 'its embedding consists of several',
        'matryoshka': 'a prefix of the mapped embedding is not the map of a prefix',
        'daml': 'synthetic negatives are embedded without the map'}),
    Wrapper(('language_distill_w',), language_guidance),
    Wrapper(('distill', 'distill_w'), distillation),
]


def chosen(opt, wrappers=(*AROUND_A_LOSS, *AROUND_THE_SUM)):
    """The wrappers that the flags ask for."""
    return [wrapper for wrapper in wrappers if all(getattr(opt, flag) for flag in wrapper.flags)]


def check_flags(opt):
    """Raises UserError for flags of wrappers that do not work together, or with values that cannot work."""
    for wrapper in chosen(opt):
        if sentence := getattr(wrapper.file, 'problem', lambda opt: None)(opt):
            raise UserError(sentence)
        for flag, reason in wrapper.not_with.items():
            if getattr(opt, flag):
                raise UserError(f'--{wrapper.flags[0]} does not work with --{flag}: {reason}; leave one of them out')


def check_fit(opt, flags):
    """
    Raises UserError where a wrapper fits none of the losses that it could be put around, or not all that it must fit.
    flags: one namespace per loss.
    """
    for wrapper in chosen(opt):
        places = with_nested_losses(flags) if wrapper.nested else flags
        losses = [file_of(part) for part in places]
        if not (all if wrapper.everywhere else any)(map(wrapper.fits, losses)):
            names = ', '.join(name for name, loss in criteria.CRITERIA.items() if wrapper.fits(loss))
            raise UserError(f'--{wrapper.flags[0]} does not work with --loss {opt.loss}, but with {names}')
    if 0 < opt.xbm_size < opt.bs:                      # here, since the run may have chosen --bs
        raise UserError(f'--xbm_size {opt.xbm_size}: the memory bank must hold at least a batch, --bs {opt.bs}')


def build_criterion(opt, batchminer, language=None):
    """
    The criterion of --loss, one name or a sum a+b, with all that is put around it.

    batchminer: its miner; for a sum, a list with one miner per loss. language: the vectors [C, k, D] of the training
    classes, with --language_distill_w; an evaluation needs none.
    """
    opt = argparse.Namespace(**vars(opt) | {'class_vectors': language})
    check_flags(opt)
    return put_around(None, AROUND_THE_SUM, build_sum, opt, batchminer)


def build_sum(opt, batchminer):
    """The weighted sum of the losses of --loss a+b, or its only loss."""
    flags = parts(opt)
    if opt.loss_weights and len(opt.loss_weights) != len(flags):
        raise UserError(f'--loss_weights: expected one for each loss of --loss {opt.loss}, not {len(opt.loss_weights)}')
    for position, part in enumerate(flags):
        if not part.loss.startswith((pml.PREFIX, torch_losses.PREFIX)):
            choose(criteria.CRITERIA, part.loss, '--loss')
        part.loss_pml_args = [pml.arguments(opt, 'loss', position, 'pml')]
        part.loss_torch_args = [pml.arguments(opt, 'loss', position, 'torch')]
    check_fit(opt, flags)
    miners = batchminer if len(flags) > 1 else [batchminer]
    built = [build(part, miner) for part, miner in zip(flags, miners, strict=True)]
    if len(built) == 1 and not opt.loss_weights:
        return built[0]
    names = [part.loss for part in flags]
    names = [name if names.count(name) == 1 else f'{name}_{position}' for position, name in enumerate(names)]
    return WeightedSum(names, built, opt.loss_weights or [1.0] * len(built))


def build(opt, miner, wrappers=AROUND_A_LOSS):
    """The loss --loss, a single name, with those of the wrappers around it that the flags ask for and that fit it."""
    if opt.loss.startswith((pml.PREFIX, torch_losses.PREFIX)):
        return put_around(file_of(opt), wrappers, build_of_library, opt, miner)
    loss = choose(criteria.CRITERIA, opt.loss, '--loss')
    check_loss(opt, loss, miner)
    return put_around(loss, wrappers, build_loss, opt, miner)


def put_around(loss, wrappers, build_inside, opt, miner):
    """build_inside(opt, miner), and around it the chosen wrappers that fit the loss; the last one is the outermost."""
    for place in reversed(range(len(wrappers))):
        wrapper = wrappers[place]
        if wrapper in chosen(opt, [wrapper]) and wrapper.fits(loss):
            inside = functools.partial(put_around, loss, wrappers[:place], build_inside)
            try:
                return hand_on(wrapper.file.around(opt, inside, miner_for(opt, miner, wrapper.takes_masks(loss))))
            except matryoshka.NotShared as error:
                raise UserError(f'--matryoshka does not work with --loss {opt.loss}: {error}, and only parameters '
                                'whose last axis is the embedding can be shared; choose another loss') from None
    return build_inside(opt, miner)


def miner_for(opt, miner, takes_masks):
    """The miner in the form in which a criterion or a wrapper takes it; None where there is none."""
    if miner is None or isinstance(miner, list) or isinstance(miner, Miner) and miner.takes_masks == takes_masks:
        return miner
    return Miner(without_form(miner), opt.batch_mining, takes_masks)


def without_form(miner):
    return miner.batchminer if isinstance(miner, Miner) else miner


def build_of_library(opt, miner):
    """The loss pml:NAME or torch:NAME."""
    if opt.loss.startswith(torch_losses.PREFIX):
        return finished(torch_losses.Criterion(opt, opt.loss_torch_args[0]))
    return finished(pml.Criterion(opt, miner_for(opt, miner, takes_masks=True), opt.loss_pml_args[0]))


def build_loss(opt, miner):
    """The Criterion of a loss's file."""
    loss = criteria.CRITERIA[opt.loss]
    if getattr(loss, 'REQUIRES_CRITERIA', False):
        built = loss.Criterion(opt, nested_builder(opt, without_form(miner)))
    else:
        given = [miner_for(opt, miner, takes_masks(loss))] if loss.REQUIRES_BATCHMINER else []
        built = public.criterion(loss, opt, *given) if public.is_criterion(loss) else loss.Criterion(opt, *given)
    unasked = {*COSTLY} & {*public.forward_parameters(built)} - {*getattr(loss, 'REQUIRES_INPUTS', ())}
    if unasked:
        raise UserError(f'--loss {opt.loss}: its forward() takes {", ".join(sorted(unasked))}, which it gets only if '
                        f'its file asks for it by a constant: REQUIRES_INPUTS = {sorted(unasked)} (docs/extending.md)')
    return finished(built)


def nested_builder(opt, miner):
    """(name of a loss, dimension of its embeddings) -> this loss, for the criterion of --loss, which is around it."""
    for flag in nested_flags(opt.loss):
        if getattr(criteria.CRITERIA.get(name := getattr(opt, flag)), 'REQUIRES_CRITERIA', False) or '+' in name:
            raise UserError(f'--{flag} {name}: give one loss, and not {opt.loss} itself')
        if not name.startswith((pml.PREFIX, torch_losses.PREFIX)):
            choose(criteria.CRITERIA, name, f'--{flag}')
    wrappers = [wrapper for wrapper in AROUND_A_LOSS if wrapper.nested]

    def build_nested(name, dim):
        own = argparse.Namespace(**vars(opt) | {'loss': name, 'embed_dim': dim})
        reads_loss = miner is not None and opt.batch_mining in ('npair', 'semihard')    # they read flags of their loss
        return build(own, type(miner)(own) if reads_loss else miner, wrappers)
    return build_nested


def build_inside_public_code(name, opt, to_optim=None, batchminer=None):
    """
    The loss `name` for a criterion of the public code that contains it. With to_optim, a list of optimizer groups:
    (criterion, to_optim with its groups).
    """
    choose(criteria.CRITERIA, name, 'criteria.select:')
    own = {'loss': name}
    if isinstance(batchminer, public.MinerOfLists):                # from batchminer.select, or the outer criterion's
        own['batch_mining'], batchminer = batchminer.name, batchminer.miner.batchminer
    criterion = build(argparse.Namespace(**vars(opt) | own), batchminer, wrappers=[])
    return criterion if to_optim is None else (criterion, to_optim + criteria.parameter_groups(criterion))


def check_loss(opt, loss, miner):
    """Raises UserError if the run lacks what a loss's file asks for: super-classes, inputs, a miner that it takes."""
    asked, names = asked_for(opt), getattr(loss, 'REQUIRES_INPUTS', ())
    if getattr(loss, 'REQUIRES_SUPERCLASSES', False) and opt.superclasses is None:
        if opt.unsupervised:
            raise UserError(f'--unsupervised: --loss {opt.loss} needs super-classes, and an image that is a class of '
                            'its own has none; choose another loss')
        raise UserError(f'--loss {opt.loss} needs the super-classes of the training classes, and --dataset '
                        f'{opt.dataset} has none here; docs/data.md says which data sets have them')
    if 'feature_maps' in asked and opt.n_maps is None:
        what, instead = f'loss {opt.loss}', 'choose another loss'
        if isinstance(names, dict):
            what, instead = names['feature_maps'], 'leave the flag out'
        raise UserError(f'--{what}: --arch {opt.arch} has no feature maps, or does not pool them by their average; '
                        f'give --pool avg, or {instead}')
    if 'teacher_batch' in asked and not opt.distill:
        raise UserError(f'--loss {opt.loss} needs the embeddings of a teacher: give --distill')
    if not loss.REQUIRES_BATCHMINER:
        return
    allowed = loss.ALLOWED_MINING_OPS
    if miner is None:
        names = ', '.join(name for name in allowed or ['any but none'] if name != 'none')
        raise UserError(f'--loss {opt.loss} needs a miner: set --batch_mining ({names})')
    if allowed is not None and opt.batch_mining not in allowed:
        raise UserError(f'--loss {opt.loss} does not work with --batch_mining {opt.batch_mining}; choose from '
                        f'{", ".join(allowed)}')
    if opt.dr_weight and takes_pairs(loss):
        raise UserError(f'--dr_weight requires a triplet loss; --loss {opt.loss} is not one')


def hand_on(wrapper):
    """
    Completes a criterion around another, its attribute `criterion`: it has the other's optimizer groups after its own,
    the other's distance if it has none of its own, and the other's scalars for the log beside its own.
    """
    if not hasattr(wrapper, 'parameter_groups'):
        wrapper.parameter_groups = types.MethodType(own_and_inner_groups, wrapper)
    if hasattr(wrapper, 'criterion'):
        if not hasattr(wrapper, 'ranking_embeddings') and hasattr(wrapper.criterion, 'ranking_embeddings'):
            wrapper.ranking_embeddings = wrapper.criterion.ranking_embeddings
        wrapper.register_forward_pre_hook(clear_log)
        wrapper.register_forward_hook(add_inner_log)
    return wrapper


def own_and_inner_groups(wrapper):
    return own_groups(wrapper, besides=wrapper.criterion) + wrapper.criterion.parameter_groups()


def clear_log(wrapper, arguments):
    wrapper.log = {}


def add_inner_log(wrapper, arguments, loss):
    wrapper.log = {**getattr(wrapper.criterion, 'log', {}), **wrapper.log}


# What the losses of a run need, as far as its flags tell before they are built: miners, inputs, pairs of a class

def nested_flags(loss):
    """The flags that name the losses inside a loss: REQUIRES_CRITERIA of its file."""
    flags = getattr(criteria.CRITERIA.get(loss), 'REQUIRES_CRITERIA', ())
    return () if flags is True else flags or ()


def with_nested_losses(flags):
    """The losses of a sum, one namespace each, and the losses inside them."""
    nested = [argparse.Namespace(**vars(part) | {'loss': name}) for part in flags
              for name in dict.fromkeys(getattr(part, flag) for flag in nested_flags(part.loss))]
    return [*flags, *nested]


def takes_miner(part):
    """Whether a loss, or one inside it, takes a miner."""
    losses = [one.loss for one in with_nested_losses([part]) if not one.loss.startswith(torch_losses.PREFIX)]
    return any(getattr(criteria.CRITERIA.get(loss), 'REQUIRES_BATCHMINER', True) for loss in losses)


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
    return any(wrapper.ranks for wrapper in chosen(opt)) or any(
        hasattr(file.Criterion, 'ranking_embeddings') for file in map(criteria.CRITERIA.get, names) if file)


def required_inputs(opt):
    """The costly inputs of the criterion: what its losses and the wrappers around them ask for."""
    found = set().union(*map(asked_for, with_nested_losses(parts(opt))))
    for wrapper in chosen(opt):
        found |= {*getattr(wrapper.file, 'REQUIRES_INPUTS', ())}
    return found


def asked_for(opt):
    """
    The COSTLY names that the file of --loss, a single name, asks for in REQUIRES_INPUTS: a list of them, or {name: the
    flag with which it is needed}.
    """
    file = criteria.CRITERIA.get(opt.loss)
    names = getattr(file, 'REQUIRES_INPUTS', ())
    for name in names:
        choose(dict.fromkeys(COSTLY), name, f'REQUIRES_INPUTS of --loss {opt.loss}:')
    asked = [name for name in names if not isinstance(names, dict) or getattr(opt, names[name])]
    gets_maps = hasattr(file, 'Criterion') and public.takes_maps(file) and getattr(opt, 'n_maps', True) is not None
    return [*asked, 'feature_maps'] if gets_maps else asked


def need_positives(opt):
    """The names of the losses that compare samples of a batch, and are zero in a batch without positive pairs."""
    def needs(file):
        has_memory = opt.xbm_size and takes_memory(file)
        return not has_memory and (file.REQUIRES_BATCHMINER or not getattr(file, 'REQUIRES_OPTIM', True))
    losses = [part.loss for part in with_nested_losses(parts(opt))]
    return [loss for loss in losses if loss in criteria.CRITERIA and needs(criteria.CRITERIA[loss])]
