"""Criteria: the losses that networks are trained with."""
from criteria import (
    angular,
    antico,
    arcface,
    center,
    circle,
    contextual,
    contrastive,
    cosface,
    dcl,
    dr_multisimilarity,
    dr_proxynca,
    dr_triplet,
    dynamic_arcface,
    fastap,
    happier,
    hier,
    histogram,
    hyperbolic,
    ldam,
    lifted,
    liftedstructure,
    linear_classifier,
    margin,
    mfcont,
    mfcwms,
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
    wrapping,
)
from criteria.wrapping import (  # noqa: F401
    check_miner,
    inputs,
    needs_pairs,
    takes_miner,
    with_nested_losses,
    with_used_miners,
)
from utilities.errors import named_flags, undeclared_flags
from utilities.parameter_groups import optimizers, parameter_groups  # noqa: F401

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
    'antico': antico,
    'center': center,
    'circle': circle,
    'contextual': contextual,
    'dcl': dcl,
    'dynamic_arcface': dynamic_arcface,
    'happier': happier,
    'hier': hier,
    'hyperbolic': hyperbolic,
    'ldam': ldam,
    'mfcont': mfcont,
    'mfcwms': mfcwms,
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


@undeclared_flags()
@named_flags()
def select(*arguments, **named):
    """
    select(opt, batchminer): see wrapping.build_criterion. select(loss, opt, to_optim=None,
    batchminer=None), the form of the public code: see wrapping.build_inside_public_code. Raises UserError for
    combinations of flags, loss and miner that do not work.
    """
    if isinstance(arguments[0], str):
        return wrapping.build_inside_public_code(*arguments, **named)
    return wrapping.build_criterion(*arguments, **named)
