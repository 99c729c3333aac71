"""
From flags to a criterion: each loss of the sum --loss a+b, what is put around it, the sum, and what is put around that.

A wrapper is a file with a function around(opt, build, miner) -> criterion. It is put around a loss if all flags of its
SET_BY are set, and around the losses inside a loss, too, if it has INSIDE_LOSSES. It calls build(opt, miner) once or
several times for the criterion inside it, with the flags and the miner for that criterion, and checks whether the
criterion fits. If not, around() raises ValueError with a sentence; or it returns the criterion as it is, and then
another loss of the sum must fit: NEEDS is the sentence for sums without one. A function problem(opt) may return a
sentence about flags that cannot work with any data, or None. A module with the attribute `criterion` hands on what the
criterion inside it has: its optimizer groups, its distance and its log.
"""
import functools

import criteria
from criteria import (
    cascade,
    class_weights,
    cross_batch_memory,
    deep_adversarial,
    direction_regularisation,
    distillation,
    matryoshka,
)
from criteria.weighted_sum import WeightedSum
from flags.namespace import changed, flags_of_losses, note
from utilities import libraries
from utilities.errors import UserError, choose, named_flags, undeclared_flags
from utilities.mined import COSTLY, Miner, MinerOfLists, finished, fitted, scalar_loss

# From the inside to the outside
AROUND_A_LOSS = [class_weights, cross_batch_memory, direction_regularisation, cascade, deep_adversarial, matryoshka]
AROUND_THE_SUM = [distillation]


def chosen(opt, wrappers=(*AROUND_A_LOSS, *AROUND_THE_SUM)):
    """The wrappers that the flags ask for. Of two flags, each has an effect where the other is set."""
    values = vars(opt)
    found = []
    for wrapper in wrappers:
        unset = [flag for flag in wrapper.SET_BY if not values[flag]]
        for flag in wrapper.SET_BY:
            others_are_set = not {*unset} - {flag}
            if others_are_set:
                note(opt, flag)
        if not unset:
            found.append(wrapper)
    return found


def check_flags(opt):
    """Raises UserError for flags of wrappers that do not work together, or with values that cannot work."""
    for wrapper in chosen(opt):
        sentence = wrapper.problem(opt) if hasattr(wrapper, 'problem') else None
        if sentence:
            raise UserError(sentence)


@undeclared_flags()
@named_flags()
def select(opt, batchminer):
    """
    The criterion of --loss, one name or a sum a+b, with all that is put around it.

    batchminer: its miner; for a sum, a list with one miner per loss. A loss that takes none leaves it out.

    Raises UserError for combinations of flags, loss and miner that do not work.
    """
    check_flags(opt)
    criterion = put_around(AROUND_THE_SUM, build_sum, opt, batchminer)
    if 'feature_maps' in inputs(criterion) and opt.n_maps is None:
        raise UserError(f'--loss {opt.loss}: --arch {opt.arch} has no feature maps, or does not pool them by their '
                        'average; give --pool avg, or choose another loss')
    if 'teacher_batch' in inputs(criterion) and not opt.distill:
        raise UserError(f'--loss {opt.loss} needs the embeddings of a teacher: give --distill')
    return criterion


def put_around(wrappers, build_inside, opt, miner):
    """The result of build_inside(opt, miner) inside the wrappers that the flags ask for; the last is the outermost."""
    if not wrappers:
        return build_inside(opt, miner)
    *inner, outermost = wrappers
    build_inside = functools.partial(put_around, inner, build_inside)
    if not chosen(opt, [outermost]):
        return build_inside(opt, miner)
    return hand_on(outermost.around(opt, build_inside, miner))


def build_sum(opt, batchminer):
    """The weighted sum of the losses of --loss a+b, or its only loss."""
    flags = flags_of_losses(opt)
    if opt.loss_weights and len(opt.loss_weights) != len(flags):
        raise UserError(f'--loss_weights: expected one for each loss of --loss {opt.loss}, not {len(opt.loss_weights)}')
    if opt.loss_weights and not any(opt.loss_weights) and not chosen(opt, AROUND_THE_SUM):
        raise UserError(f'--loss_weights {" ".join(map(str, opt.loss_weights))}: nothing would be trained; give at '
                        'least one other than 0')
    for library in ('pml', 'torch'):
        given = iter(libraries.arguments(opt, 'loss', [name for part in flags for name in names_of(part)], library))
        for part in flags:
            setattr(part, f'loss_{library}_args', {name: next(given) for name in names_of(part)})
    miners = batchminer if len(flags) > 1 else [batchminer]
    built = [build(part, miner) for part, miner in zip(flags, miners, strict=True)]
    for wrapper in chosen(opt, AROUND_A_LOSS):
        modules_inside = {type(module).__module__ for criterion in built for module in criterion.modules()}
        if wrapper.__name__ not in modules_inside:
            raise UserError(f'--{wrapper.SET_BY[0]} does not work with --loss {opt.loss}: {wrapper.NEEDS}')
    if len(built) == 1 and not opt.loss_weights:
        return built[0]
    weights = opt.loss_weights or [1.0] * len(built)
    names = [part.loss for part in flags]
    names = [name if names.count(name) == 1 else f'{name}_{position}' for position, name in enumerate(names)]
    return hand_on(WeightedSum(names, built, weights))


def build(opt, batchminer, wrappers=AROUND_A_LOSS):
    """The loss of --loss, a single name, inside the wrappers that the flags ask for and that fit it."""
    check_miner(opt, batchminer)
    loss = criteria.CRITERIA.get(opt.loss)
    if loss and loss.REQUIRES_BATCHMINER:
        miner = fitted(loss, batchminer, opt.batch_mining)
    elif batchminer and takes_miner(opt):                         # a loss of a library, or with losses inside it
        use = 'own' if loss else 'any'
        miner = Miner(batchminer, opt.batch_mining, takes_masks=True, use=use, takes_counts=use == 'any')
    else:
        miner = None
    return put_around(wrappers, build_loss, opt, miner)


def build_loss(opt, miner):
    """The criterion of --loss, a single name. miner: the Miner as this loss takes it, or None."""
    if opt.loss.startswith(libraries.TORCH):
        return finished(libraries.TorchCriterion(opt, opt.loss_torch_args[opt.loss]))
    if opt.loss.startswith(libraries.PML):
        return finished(libraries.PmlCriterion(opt, miner, opt.loss_pml_args[opt.loss]))
    loss = choose(criteria.CRITERIA, opt.loss, '--loss')
    if nested_flags(opt.loss):
        built = loss.Criterion(opt, nested_builder(opt, miner))
    elif miner is None:
        built = loss.Criterion(opt)
    else:
        built = loss.Criterion(opt, miner if hasattr(loss, 'FLAGS') else MinerOfLists(miner))
    built.needs_pairs = loss.REQUIRES_BATCHMINER or not built.state_dict()
    if not hasattr(loss, 'FLAGS'):                                # files of the public code have none
        built.register_forward_hook(functools.partial(scalar_loss, opt.loss), with_kwargs=True)
    return finished(built)


def nested_builder(opt, miner):
    """(name of a loss, dimension of its embeddings) -> this loss, for the criterion of --loss, which is around it."""
    for flag in nested_flags(opt.loss):
        name = getattr(opt, flag)
        if nested_flags(name) or '+' in name:
            raise UserError(f'--{flag} {name}: give one loss, and not {opt.loss} itself')
        if not name.startswith((libraries.PML, libraries.TORCH)):
            choose(criteria.CRITERIA, name, f'--{flag}')
    wrappers = [wrapper for wrapper in AROUND_A_LOSS if hasattr(wrapper, 'INSIDE_LOSSES')]

    def build_nested(name, dim):
        own = changed(opt, loss=name, embed_dim=dim)
        batchminer = miner and miner.batchminer
        if batchminer and opt.batch_mining in ('npair', 'semihard'):                    # they read flags of their loss
            batchminer = type(batchminer)(own)
        return build(own, batchminer, wrappers)
    return build_nested


def hand_on(wrapper):
    """
    Completes a criterion that contains others, as finished() does, and adds the names that these take to its attribute
    `takes`. If it has one as its attribute `criterion`, it also gets that one's distance, unless it has its own, and
    that one's scalars for the log.
    """
    if hasattr(wrapper, 'takes'):                                 # the criterion inside, returned as it is
        return wrapper
    inner = [module.takes for module in wrapper.modules() if hasattr(module, 'takes')]
    finished(wrapper).takes.update(*inner)
    if hasattr(wrapper, 'criterion'):
        if not hasattr(wrapper, 'ranking_embeddings') and hasattr(wrapper.criterion, 'ranking_embeddings'):
            wrapper.ranking_embeddings = wrapper.criterion.ranking_embeddings
        wrapper.register_forward_hook(add_inner_log)
    return wrapper


def add_inner_log(wrapper, arguments, loss):
    """Adds the log of the criterion inside, after a wrapper's forward(), which has set its `log` anew."""
    wrapper.log = {**getattr(wrapper.criterion, 'log', {}), **wrapper.log}


# Questions to a criterion that is built

def inputs(criterion):
    """The COSTLY inputs that a criterion and those inside it ask for."""
    return {name for module in criterion.modules() for name in getattr(module, 'takes', ()) if name in COSTLY}


def needs_pairs(criterion):
    """
    Whether a criterion is zero in a batch without pairs of a class: a loss in it has no memory bank, and takes a miner
    or has no weights, proxies or centres.
    """
    if isinstance(criterion, cross_batch_memory.CrossBatchMemory):
        return False
    return getattr(criterion, 'needs_pairs', False) or any(map(needs_pairs, criterion.children()))


# What the files of the losses say

def nested_flags(loss):
    """The flags that name the losses inside a loss: REQUIRES_CRITERIA of its file."""
    return getattr(criteria.CRITERIA.get(loss), 'REQUIRES_CRITERIA', ())


def names_of(part):
    """The names of --loss, a single name, and of the losses inside it, each once."""
    return [*dict.fromkeys([part.loss, *(getattr(part, flag) for flag in nested_flags(part.loss))])]


def files(part):
    """The files of --loss, a single name, and of the losses inside it; none for a loss of a library."""
    return [criteria.CRITERIA[name] for name in names_of(part) if name in criteria.CRITERIA]


def takes_miner(part):
    """Whether --loss, a single name, or a loss inside it, takes a miner, so that one is built for it."""
    from_library = any(name.startswith(libraries.PML) for name in names_of(part))
    return from_library or any(loss.REQUIRES_BATCHMINER for loss in files(part))


def has_own_distance(opt):
    """Whether a loss defines a distance by which evaluation ranks."""
    return any(hasattr(loss.Criterion, 'ranking_embeddings') for part in flags_of_losses(opt) for loss in files(part))


def check_miner(opt, miner):
    """Raises UserError if --loss, a single name, lacks a miner, or takes only other miners. miner: or None."""
    loss = criteria.CRITERIA.get(opt.loss)                                       # None for a library, which takes all
    if not getattr(loss, 'REQUIRES_BATCHMINER', False):
        return
    allowed = loss.ALLOWED_MINING_OPS
    if miner is None:
        names = ', '.join(name for name in allowed or ['any but none'] if name != 'none')
        raise UserError(f'--loss {opt.loss} needs a miner: set --batch_mining ({names})')
    if allowed is not None and opt.batch_mining not in allowed:
        raise UserError(f'--loss {opt.loss} does not work with --batch_mining {opt.batch_mining}; choose from '
                        f'{", ".join(allowed)}')
