"""Criteria: the losses that networks are trained with."""
import argparse

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
from criteria.weighted_sum import WeightedSum
from utilities import pml
from utilities.combination import Adapted, Given, parts, with_inner
from utilities.errors import UserError, choose

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


def select(opt, batchminer):
    """
    The criterion of --loss, which is one name or a sum a+b, with the distillation of --distill, if set. batchminer: its
    miner; for a sum, a list of one per loss.

    Raises UserError for combinations of flags, loss and miner that do not work.
    """
    flags = parts(opt)
    if opt.loss_weights and len(opt.loss_weights) != len(flags):
        raise UserError(f'--loss_weights: expected one for each loss of --loss {opt.loss}, not {len(opt.loss_weights)}')
    miners = batchminer if len(flags) > 1 else [batchminer]
    criteria = [build(part, miner, pml.arguments(opt, 'loss', position))
                for position, (part, miner) in enumerate(zip(flags, miners, strict=True))]
    for flag, wrapper, where in (('xbm_size', CrossBatchMemory, supporting()),
                                 ('dr_weight', DirectionRegularised, 'losses that take a miner'),
                                 ('cascade', Cascade, 'losses that take a miner of triplets'),
                                 ('daml', DeepAdversarial, 'losses that take a miner of triplets')):
        if getattr(opt, flag) and not any(isinstance(module, wrapper)
                                          for criterion in criteria for module in criterion.modules()):
            raise UserError(f'--{flag} does not work with --loss {opt.loss}, but with {where}')
    if opt.class_sample_rate < 1 and not any(hasattr(CRITERIA.get(part.loss), 'SAMPLES_CLASSES')
                                             for part in with_inner(flags)):
        names = [name for name, module in CRITERIA.items() if hasattr(module, 'SAMPLES_CLASSES')]
        raise UserError(f'--class_sample_rate does not work with --loss {opt.loss}, but with {", ".join(names)}')
    if len(criteria) == 1 and not opt.loss_weights:
        criterion, = criteria
    else:
        names = [part.loss for part in flags]
        names = [name if names.count(name) == 1 else f'{name}_{position}' for position, name in enumerate(names)]
        criterion = WeightedSum(names, criteria, opt.loss_weights or [1.0] * len(criteria))
    return Distilled(criterion, opt.distill_w, opt.distill_T) if has_teacher(opt) else criterion


def has_teacher(opt):
    """Whether the loss needs a teacher's embeddings, `teacher_batch` [B, D']."""
    return bool(opt.distill and opt.distill_w)


def supporting():
    return ', '.join(name for name, module in CRITERIA.items() if getattr(module, 'SUPPORTS_MEMORY', False))


def ranks(opt):
    """Whether one of the losses has its own distance, by which evaluation ranks."""
    names = [part.loss_s2sd_source if part.loss == 's2sd' else part.loss for part in parts(opt)]
    return any(hasattr(CRITERIA[name].Criterion, 'ranking_embeddings') for name in names if name in CRITERIA)


def with_used_miners(opt):
    """The flags with --batch_mining none for the losses of a sum that take no miner, so that none is built for them."""
    used = [part.batch_mining if takes_miner(part) else 'none' for part in parts(opt)]
    return argparse.Namespace(**vars(opt) | {'batch_mining': '+'.join(used)})


def takes_miner(part):
    """Whether a loss, or one inside it, takes a miner."""
    return any(getattr(CRITERIA.get(one.loss), 'REQUIRES_BATCHMINER', True) for one in with_inner([part]))


def requires_maps(criterion):
    """Whether the criterion, or one inside it, takes the feature maps before pooling, `feature_maps` [B, C, h, w]."""
    return any(getattr(module, 'REQUIRES_MAPS', False) for module in criterion.modules())


def need_positives(opt):
    """The names of the losses of pairs within the batch, which are zero in a batch without positive pairs."""
    def needs(module):
        has_memory = opt.xbm_size and getattr(module, 'SUPPORTS_MEMORY', False)
        return not has_memory and (module.REQUIRES_BATCHMINER or not getattr(module, 'REQUIRES_OPTIM', True))
    return [part.loss for part in with_inner(parts(opt)) if part.loss in CRITERIA and needs(CRITERIA[part.loss])]


def build(opt, batchminer, pml_arguments):
    """One criterion, with the memory bank of --xbm_size and the direction regularisation of --dr_weight, if set."""
    if opt.loss.startswith(pml.PREFIX):
        return pml.Criterion(opt, batchminer and Adapted(batchminer, opt.batch_mining, 'masks'), pml_arguments)
    module = choose(CRITERIA, opt.loss, '--loss')
    if getattr(module, 'REQUIRES_SUPERCLASSES', False) and opt.superclasses is None:
        if opt.unsupervised:
            raise UserError(f'--unsupervised: --loss {opt.loss} needs super-classes, and an image that is a class of '
                            'its own has none; choose another loss')
        raise UserError(f'--loss {opt.loss} needs the super-classes of the training classes, and --dataset '
                        f'{opt.dataset} has none here; docs/data.md says which data sets have them')
    direction = opt.dr_weight and module.REQUIRES_BATCHMINER
    if getattr(module, 'REQUIRES_CRITERIA', False):
        return build_around(opt, module, batchminer, pml_arguments)
    if not module.REQUIRES_BATCHMINER:
        criterion = module.Criterion(opt)
    else:
        check_miner(opt, module, batchminer)
        if opt.cascade and not takes_pairs(module):
            return cascade_of(opt, module, batchminer)
        if opt.daml and not takes_pairs(module):
            return adversarial(opt, batchminer)
        batchminer = Adapted(batchminer, opt.batch_mining, taken_by(module))
        criterion = module.Criterion(opt, batchminer)
    if opt.xbm_size and getattr(module, 'SUPPORTS_MEMORY', False):
        if opt.xbm_size < opt.bs:
            raise UserError(f'--xbm_size {opt.xbm_size}: the memory bank must hold at least a batch, --bs {opt.bs}')
        criterion = CrossBatchMemory(criterion, opt.xbm_size, opt.embed_dim, opt.xbm_weight, opt.xbm_start)
    # outside the memory bank, whose pairs form no triplets
    return DirectionRegularised(criterion, batchminer, opt.dr_weight) if direction else criterion


def build_around(opt, module, batchminer, pml_arguments):
    """A criterion around others, s2sd; each of these has its own memory bank and direction regularisation."""
    for flag in ('loss_s2sd_source', 'loss_s2sd_target'):
        if getattr(CRITERIA.get(name := getattr(opt, flag)), 'REQUIRES_CRITERIA', False) or '+' in name:
            raise UserError(f'--{flag} {name}: give one loss, and not s2sd itself')
        if not name.startswith(pml.PREFIX):
            choose(CRITERIA, name, f'--{flag}')
    if opt.loss_s2sd_pool_aggr and opt.n_maps is None:
        raise UserError(f'--loss_s2sd_pool_aggr: --arch {opt.arch} has no feature maps, or does not pool them by their '
                        'average; give --pool avg, or leave the flag out')

    def inner(name, dim):
        own = argparse.Namespace(**vars(opt) | {'loss': name, 'embed_dim': dim, 'cascade': [], 'daml': False})
        reads_loss = opt.batch_mining in ('npair', 'semihard')      # miners that read flags of the loss they mine for
        return build(own, type(batchminer)(own) if reads_loss else batchminer, pml_arguments)
    return module.Criterion(opt, inner)


def cascade_of(opt, module, batchminer):
    """--cascade: a criterion for each level, each with its own parameters, memory bank and direction regularisation."""
    n_levels = len(opt.cascade) + 1
    of_level = argparse.Namespace(**vars(opt) | {'embed_dim': opt.embed_dim // n_levels, 'cascade': []})
    given = [Given() for _ in range(n_levels)]
    takes = 'masks' if getattr(module, 'OF_PAIRS', False) else 'triplets'
    return Cascade([build(of_level, miner, None) for miner in given], given,
                   Adapted(batchminer, opt.batch_mining, takes), opt.cascade_fractions)


def adversarial(opt, batchminer):
    """--daml: the criterion with synthetic negatives."""
    given = Given()
    criterion = build(argparse.Namespace(**vars(opt) | {'daml': False}), given, None)
    return DeepAdversarial(
        criterion, given, Adapted(batchminer, opt.batch_mining, 'triplets'), opt.n_features, '_normalize' in opt.arch,
        opt.daml_layers, opt.lr if opt.daml_lr < 0 else opt.daml_lr, opt.daml_weight, opt.daml_reg_weight,
        opt.daml_adv_weight, opt.daml_margin, opt.daml_real_weight, opt.daml_delay)


def taken_by(module):
    """What a criterion takes from its miner, in the words of Adapted."""
    if getattr(module, 'ACCEPTS_MASKS', False):
        return 'masks'
    if takes_pairs(module):
        return 'lists'
    return 'list' if hasattr(module, 'batchminer') else 'triplets'       # the criteria of the public code import it


def takes_pairs(module):
    """Whether a criterion works only with miners of pairs: they return masks here, and lists in the public code."""
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


def parameter_groups(criterion):
    """
    The optimizer groups of the criterion's own parameters: its `optim_dict_list`, or all of them with its learning rate
    `lr`; for a sum, or a criterion inside another, those of the inner criteria.
    """
    if isinstance(criterion, WeightedSum):
        return [{'name': f'criterion_{name}'} | group
                for name, part in zip(criterion.names, criterion.criteria, strict=True)
                for group in parameter_groups(part)]
    if isinstance(criterion, Cascade):
        return [{'name': f'criterion_level_{number}'} | group for number, level in enumerate(criterion.levels, start=1)
                for group in parameter_groups(level)]
    if isinstance(criterion, DeepAdversarial):
        return [{'name': 'criterion_generator'} | group
                for group in criterion.optim_dict_list] + parameter_groups(criterion.criterion)
    if isinstance(criterion, s2sd.Criterion):
        return [{'name': 'criterion_heads'} | group for group in criterion.optim_dict_list] + [
            group for part in (criterion.source, *criterion.targets) for group in parameter_groups(part)]
    if isinstance(criterion, (CrossBatchMemory, DirectionRegularised, Distilled)):
        return parameter_groups(criterion.criterion)
    if hasattr(criterion, 'optim_dict_list'):
        return criterion.optim_dict_list
    trained = [parameter for parameter in criterion.parameters() if parameter.requires_grad]
    if trained and not hasattr(criterion, 'lr'):
        raise UserError(f'{type(criterion).__module__}.{type(criterion).__name__} has parameters, but neither a rate '
                        'self.lr nor optimizer groups self.optim_dict_list')
    return [{'params': list(criterion.parameters()), 'lr': criterion.lr}] if trained else []
