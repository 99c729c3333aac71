"""Criteria: the losses that networks are trained with."""
import argparse
import inspect
import types

from criteria import (
    angular,
    arcface,
    circle,
    contrastive,
    cosface,
    dr_multisimilarity,
    dr_proxynca,
    dr_triplet,
    fastap,
    happier,
    hier,
    histogram,
    hyperbolic,
    keywords,
    lifted,
    liftedstructure,
    linear_classifier,
    margin,
    multisimilarity,
    nir,
    npair,
    ntxent,
    oproxy,
    pfml,
    proxyanchor,
    proxynca,
    proxynca_pp,
    quadruplet,
    recallatk,
    roadmap,
    s2sd,
    smoothap,
    snr,
    snr_contrastive,
    softmax,
    softtriplet,
    subcenter_arcface,
    supcon,
    tcm,
    triplet,
)
from criteria.cascade import Cascade
from criteria.cross_batch_memory import CrossBatchMemory
from criteria.deep_adversarial import DeepAdversarial
from criteria.direction_regularisation import DirectionRegularised
from criteria.distillation import Distilled
from criteria.language_guidance import LanguageGuided
from criteria.matryoshka import Matryoshka
from criteria.weighted_sum import WeightedSum
from utilities import pml, torch_losses
from utilities.combination import Given, Miner, as_in_public_code, parts
from utilities.errors import UserError, choose, undeclared_flags
from utilities.parameter_groups import optimizers, own_groups, parameter_groups  # noqa: F401
from utilities.randomness import preserved

CRITERIA = {
    # Roth et al., ICML 2020
    'angular': angular,
    'arcface': arcface,
    'contrastive': contrastive,
    'histogram': histogram,
    'lifted': lifted,
    'liftedstructure': liftedstructure,
    'margin': margin,
    'multisimilarity': multisimilarity,
    'npair': npair,
    'proxynca': proxynca,
    'quadruplet': quadruplet,
    'snr': snr,
    'softmax': softmax,
    'softtriplet': softtriplet,
    'triplet': triplet,
    # Musgrave et al., ECCV 2020
    'cosface': cosface,
    'fastap': fastap,
    'linear_classifier': linear_classifier,
    'ntxent': ntxent,
    'snr_contrastive': snr_contrastive,
    # Mohan et al., CVPR 2020
    'dr_multisimilarity': dr_multisimilarity,
    'dr_proxynca': dr_proxynca,
    'dr_triplet': dr_triplet,
    # later papers
    'circle': circle,
    'happier': happier,
    'hier': hier,
    'hyperbolic': hyperbolic,
    'nir': nir,
    'oproxy': oproxy,
    'pfml': pfml,
    'proxyanchor': proxyanchor,
    'proxynca_pp': proxynca_pp,
    'recallatk': recallatk,
    'roadmap': roadmap,
    's2sd': s2sd,
    'smoothap': smoothap,
    'subcenter_arcface': subcenter_arcface,
    'supcon': supcon,
    'tcm': tcm,
}
COSTLY = ('feature_maps', 'images', 'teacher_batch')            # the keywords that a criterion must ask for


@undeclared_flags()
def select(*arguments, **named):
    """
    select(opt, batchminer, language=None): see of_run. select(loss, opt, to_optim=None, batchminer=None), the form of
    the public code: see inside. Raises UserError for combinations of flags, loss and miner that do not work.
    """
    return (inside if isinstance(arguments[0], str) else of_run)(*arguments, **named)


def inside(loss, opt, to_optim=None, batchminer=None):
    """
    The criterion `loss` for a criterion of the public code that contains it. With to_optim, a list of optimizer groups:
    (criterion, to_optim with its groups).
    """
    choose(CRITERIA, loss, 'criteria.select:')
    own = {'loss': loss, 'cascade': [], 'daml': False, 'xbm_size': 0, 'dr_weight': 0, 'matryoshka': []}
    if isinstance(batchminer, Miner):                              # from batchminer.select, or the outer criterion's
        own['batch_mining'], batchminer = batchminer.name, batchminer.batchminer
    criterion = build(argparse.Namespace(**vars(opt) | own), batchminer, None)
    return criterion if to_optim is None else (criterion, to_optim + parameter_groups(criterion))


def of_run(opt, batchminer, language=None):
    """
    The criterion of --loss, one name or a sum a+b, with language guidance and the distillation of --distill, if set.
    batchminer: its miner; for a sum, a list with one miner per loss. language: the vectors [C, k, D] of the training
    classes, with --language_distill_w; an evaluation needs none.
    """
    flags = parts(opt)
    if opt.loss_weights and len(opt.loss_weights) != len(flags):
        raise UserError(f'--loss_weights: expected one for each loss of --loss {opt.loss}, not {len(opt.loss_weights)}')
    miners = batchminer if len(flags) > 1 else [batchminer]
    criteria = [build(part, miner, {library: pml.arguments(opt, 'loss', position, library)
                                    for library in ('pml', 'torch')})
                for position, (part, miner) in enumerate(zip(flags, miners, strict=True))]
    for flag, wrapper, where in (('xbm_size', CrossBatchMemory, supporting()),
                                 ('dr_weight', DirectionRegularised, 'losses that take a miner'),
                                 ('cascade', Cascade, 'losses that take a miner of triplets'),
                                 ('daml', DeepAdversarial, 'losses that take a miner of triplets')):
        if getattr(opt, flag) and not any(isinstance(module, wrapper)
                                          for criterion in criteria for module in criterion.modules()):
            raise UserError(f'--{flag} does not work with --loss {opt.loss}, but with {where}')
    if len(criteria) == 1 and not opt.loss_weights:
        criterion, = criteria
    else:
        names = [part.loss for part in flags]
        names = [name if names.count(name) == 1 else f'{name}_{position}' for position, name in enumerate(names)]
        criterion = WeightedSum(names, criteria, opt.loss_weights or [1.0] * len(criteria))
    if opt.language_distill_w:
        criterion = LanguageGuided(criterion, language, opt.language_distill_w, opt.language_delay, opt.language_shift,
                                   opt.language_temp, opt.language_distill_dir)
    return Distilled(criterion, opt.distill_w, opt.distill_T) if has_teacher(opt) else criterion


def has_teacher(opt):
    """Whether the loss needs a teacher's embeddings, `teacher_batch` [B, D']."""
    return bool(opt.distill and opt.distill_w)


def supporting():
    return ', '.join(name for name, module in CRITERIA.items() if getattr(module, 'SUPPORTS_MEMORY', False))


def ranks(opt):
    """Whether evaluation ranks by a loss's own distance. A loss around others has the distance of its first."""
    names = [getattr(part, [*inner_flags(part.loss), 'loss'][0]) for part in parts(opt)]
    return any(hasattr(CRITERIA[name].Criterion, 'ranking_embeddings') for name in names if name in CRITERIA)


def inner_flags(loss):
    """The flags that name the losses inside a loss: REQUIRES_CRITERIA of its file."""
    flags = getattr(CRITERIA.get(loss), 'REQUIRES_CRITERIA', ())
    return () if flags is True else flags or ()


def with_inner(parts):
    """The losses of a sum, and the losses inside them."""
    inner = [argparse.Namespace(**vars(part) | {'loss': name}) for part in parts
             for name in dict.fromkeys(getattr(part, flag) for flag in inner_flags(part.loss))]
    return [*parts, *inner]


def with_used_miners(opt):
    """The flags with --batch_mining none for each loss of a sum that takes no miner, so that none is built for it."""
    used = [part.batch_mining if takes_miner(part) else 'none' for part in parts(opt)]
    return argparse.Namespace(**vars(opt) | {'batch_mining': '+'.join(used)})


def takes_miner(part):
    """Whether a loss, or one inside it, takes a miner."""
    return any(getattr(CRITERIA.get(one.loss), 'REQUIRES_BATCHMINER', True) for one in with_inner([part])
               if not one.loss.startswith(torch_losses.PREFIX))


def required_inputs(opt, criterion=None):
    """The costly inputs of the criterion: what its losses ask for, and a teacher's embeddings for --distill."""
    found = set().union(*(asked_for(part, part.loss) for part in with_inner(parts(opt))))
    if has_teacher(opt):
        found.add('teacher_batch')
    if criterion and any(getattr(module, 'REQUIRES_MAPS', False) for module in criterion.modules()):
        found.add('feature_maps')                              # the way to ask before REQUIRES_INPUTS existed
    return found


def asked_for(opt, loss):
    """REQUIRES_INPUTS of a loss's file: a list of COSTLY names, or {name: the flag with which it is needed}."""
    names = getattr(CRITERIA.get(loss), 'REQUIRES_INPUTS', ())
    for name in names:
        choose(dict.fromkeys(COSTLY), name, f'REQUIRES_INPUTS of --loss {loss}:')
    asked = [name for name in names if not isinstance(names, dict) or getattr(opt, names[name])]
    return [*asked, 'feature_maps'] if takes_maps(opt, loss) else asked


def takes_maps(opt, loss):
    """Whether a loss of the public code gets feature maps; it gets pooled features if the network has no maps."""
    criterion = getattr(CRITERIA.get(loss), 'Criterion', None)
    return bool(criterion) and keywords.has_public_features(criterion) and getattr(opt, 'n_maps', True) is not None


def need_positives(opt):
    """The names of the losses that compare samples of a batch, and are zero in a batch without positive pairs."""
    def needs(module):
        has_memory = opt.xbm_size and getattr(module, 'SUPPORTS_MEMORY', False)
        return not has_memory and (module.REQUIRES_BATCHMINER or not getattr(module, 'REQUIRES_OPTIM', True))
    return [part.loss for part in with_inner(parts(opt)) if part.loss in CRITERIA and needs(CRITERIA[part.loss])]


def build(opt, batchminer, given):
    """
    One criterion; with a memory bank if --xbm_size is set, and direction regularisation if --dr_weight is set. given:
    {library: the arguments of its loss}.
    """
    if opt.matryoshka:
        return of_prefixes(opt, batchminer, given)
    if opt.loss.startswith(torch_losses.PREFIX):
        return fitted(torch_losses.Criterion(opt, given['torch']))
    if opt.loss.startswith(pml.PREFIX):
        miner = batchminer and Miner(batchminer, opt.batch_mining, takes_masks=True)
        return fitted(pml.Criterion(opt, miner, given['pml']))
    module = choose(CRITERIA, opt.loss, '--loss')
    if getattr(module, 'REQUIRES_SUPERCLASSES', False) and opt.superclasses is None:
        if opt.unsupervised:
            raise UserError(f'--unsupervised: --loss {opt.loss} needs super-classes, and an image that is a class of '
                            'its own has none; choose another loss')
        raise UserError(f'--loss {opt.loss} needs the super-classes of the training classes, and --dataset '
                        f'{opt.dataset} has none here; docs/data.md says which data sets have them')
    check_inputs(opt, module)
    direction = opt.dr_weight and module.REQUIRES_BATCHMINER
    if getattr(module, 'REQUIRES_CRITERIA', False):
        return build_around(opt, module, batchminer, given)
    if not module.REQUIRES_BATCHMINER:
        criterion = fitted(module.Criterion(as_in_public_code(opt)))
    else:
        check_miner(opt, module, batchminer)
        if opt.cascade and not takes_pairs(module):
            return cascade_of(opt, module, batchminer)
        if opt.daml and not takes_pairs(module):
            return adversarial(opt, module, batchminer)
        batchminer = miner_for(opt, module, batchminer)
        criterion = fitted(module.Criterion(as_in_public_code(opt), batchminer))
    if opt.xbm_size and getattr(module, 'SUPPORTS_MEMORY', False):
        if opt.xbm_size < opt.bs:
            raise UserError(f'--xbm_size {opt.xbm_size}: the memory bank must hold at least a batch, --bs {opt.bs}')
        criterion = CrossBatchMemory(criterion, opt.xbm_size, opt.embed_dim, opt.xbm_weight, opt.xbm_start)
    # outside the memory bank, whose pairs form no triplets
    return DirectionRegularised(criterion, batchminer, opt.dr_weight) if direction else criterion


def fitted(criterion):
    """
    Adapts the criterion that its file made to the program: it then ignores the keywords that its `forward` does not
    take, and has parameter_groups().
    """
    keywords.restrict(criterion)
    if not hasattr(criterion, 'parameter_groups'):
        criterion.parameter_groups = types.MethodType(own_groups, criterion)
    return criterion


def check_inputs(opt, module):
    """Raises UserError if a loss asks for inputs that the run does not have."""
    asked, names = asked_for(opt, opt.loss), getattr(module, 'REQUIRES_INPUTS', ())
    if 'feature_maps' in asked and opt.n_maps is None:
        what, instead = f'loss {opt.loss}', 'choose another loss'
        if isinstance(names, dict):
            what, instead = names['feature_maps'], 'leave the flag out'
        raise UserError(f'--{what}: --arch {opt.arch} has no feature maps, or does not pool them by their average; '
                        f'give --pool avg, or {instead}')
    if 'teacher_batch' in asked and not opt.distill:
        raise UserError(f'--loss {opt.loss} needs the embeddings of a teacher: give --distill')


def build_around(opt, module, batchminer, given):
    """A criterion around other losses, each with its own memory bank and direction regularisation."""
    for flag in inner_flags(opt.loss):
        if getattr(CRITERIA.get(name := getattr(opt, flag)), 'REQUIRES_CRITERIA', False) or '+' in name:
            raise UserError(f'--{flag} {name}: give one loss, and not {opt.loss} itself')
        if not name.startswith((pml.PREFIX, torch_losses.PREFIX)):
            choose(CRITERIA, name, f'--{flag}')

    def inner(name, dim):
        own = argparse.Namespace(**vars(opt) | {'loss': name, 'embed_dim': dim, 'cascade': [], 'daml': False})
        reads_loss = opt.batch_mining in ('npair', 'semihard')      # these miners read flags of their loss
        return build(own, type(batchminer)(own) if reads_loss else batchminer, given)
    return fitted(module.Criterion(opt, inner))


def cascade_of(opt, module, batchminer):
    """--cascade: a criterion for each level, each with its own parameters, memory bank and direction regularisation."""
    n_levels = len(opt.cascade) + 1
    of_level = argparse.Namespace(**vars(opt) | {'embed_dim': opt.embed_dim // n_levels, 'cascade': []})
    given = [Given() for _ in range(n_levels)]
    miner = Miner(batchminer, opt.batch_mining, takes_masks=getattr(module, 'OF_PAIRS', False))
    return Cascade([build(of_level, own, None) for own in given], given, miner, opt.cascade_fractions)


def of_prefixes(opt, batchminer, arguments):
    """--matryoshka: a criterion for each prefix, each with its own memory bank and direction regularisation."""
    def of_dim(dim):
        return build(argparse.Namespace(**vars(opt) | {'embed_dim': dim, 'matryoshka': []}), given or batchminer,
                     arguments)

    module, given, miner = CRITERIA.get(opt.loss), None, None
    names = {*asked_for(opt, opt.loss), *(inspect.signature(module.Criterion.forward).parameters if module else ())}
    if names & {*COSTLY, 'batch_features', 'avg_batch_features', 'f_embed'} or inner_flags(opt.loss):
        raise UserError(f'--matryoshka does not work with --loss {opt.loss}, which computes more than a loss of the '
                        'embeddings; choose another loss')
    if batchminer is not None and not opt.matryoshka_mine_prefixes:
        takes_masks = module is None or getattr(module, 'ACCEPTS_MASKS', False) or takes_pairs(module)
        given, miner = Given(), Miner(batchminer, opt.batch_mining, takes_masks)
    criterion = of_dim(opt.embed_dim)
    with preserved():                                            # random numbers as without the prefixes
        prefixes = {dim: of_dim(dim) for dim in opt.matryoshka[:-1]}
    try:
        return Matryoshka(criterion, prefixes, opt.matryoshka_weights or [1.0] * len(opt.matryoshka),
                          '_normalize' in opt.arch, given, miner)
    except ValueError as error:
        raise UserError(f'--matryoshka does not work with --loss {opt.loss}: {error}, and only parameters whose last '
                        'axis is the embedding can be shared; choose another loss') from None


def adversarial(opt, module, batchminer):
    """--daml: the criterion with synthetic negatives; these have no image."""
    of_images = asked_for(opt, opt.loss) or ['indices']
    if of_images != ['indices'] or 'indices' in inspect.signature(module.Criterion.forward).parameters:
        raise UserError(f'--daml does not work with --loss {opt.loss}, which asks for {", ".join(of_images)}: '
                        'synthetic negatives have no image')
    given = Given()
    criterion = build(argparse.Namespace(**vars(opt) | {'daml': False}), given, None)
    return DeepAdversarial(
        criterion, given, Miner(batchminer, opt.batch_mining, takes_masks=False), opt.n_features,
        '_normalize' in opt.arch, opt.daml_layers, opt.lr if opt.daml_lr < 0 else opt.daml_lr, opt.daml_weight,
        opt.daml_reg_weight, opt.daml_adv_weight, opt.daml_margin, opt.daml_real_weight, opt.daml_delay)


def miner_for(opt, module, batchminer):
    """The miner, returning its tuples in the form that a criterion of this file takes."""
    takes_masks = getattr(module, 'ACCEPTS_MASKS', False)
    imported = {value.__name__ for value in vars(module).values() if inspect.ismodule(value)}
    of_public_code = not takes_masks and (takes_pairs(module) or 'batchminer' in imported)
    return Miner(batchminer, opt.batch_mining, takes_masks or takes_pairs(module), gives_lists=of_public_code)


def takes_pairs(module):
    """Whether a criterion takes pairs only, from miners that return masks here and lists in the public code."""
    return bool(module.ALLOWED_MINING_OPS) and {*module.ALLOWED_MINING_OPS} <= {'npair', 'lifted'}


def check_miner(opt, module, batchminer):
    if batchminer is None:
        allowed = ', '.join(name for name in module.ALLOWED_MINING_OPS or ['any but none'] if name != 'none')
        raise UserError(f'--loss {opt.loss} needs a miner: set --batch_mining ({allowed})')
    if module.ALLOWED_MINING_OPS is not None and opt.batch_mining not in module.ALLOWED_MINING_OPS:
        raise UserError(f'--loss {opt.loss} does not work with --batch_mining {opt.batch_mining}; choose from '
                        f'{", ".join(module.ALLOWED_MINING_OPS)}')
    if opt.dr_weight and takes_pairs(module):
        raise UserError(f'--dr_weight needs a loss of triplets, which --loss {opt.loss} is not')
