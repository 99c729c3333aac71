"""Values that the losses' authors' code or another library gives on a batch of six."""
import pytest
import torch

import criteria
from tests.criteria import cases, references
from tests.criteria.cases import CENTRES, LABELS, RAW, TRIPLETS, UNIT, VECTORS

BETA = torch.tensor([1.2, 1.0, .8], dtype=cases.F64)
PAIRS = [(0, 1), (2, 3), (4, 5)]
FIVE = torch.cat([VECTORS, torch.tensor([(0, 0, 2), (1, -1, 0)], dtype=cases.F64)])


def pair_masks(batch, labels):
    """One anchor and positive a class; negatives are the other classes' positives."""
    masks = torch.zeros(2, 6, 6, dtype=torch.bool)
    for a, p in PAIRS:
        masks[0, a, p] = True
        masks[1, a, [other for _, other in PAIRS if other != p]] = True
    return masks[0], masks[1]


def listed(batch, labels):
    return TRIPLETS


# loss, flags, batch, miner (None: the default one of the tests), class weights, value
NUMBERS = [
    ('triplet', {}, UNIT, listed, None, 0.629333),
    ('triplet', {'margin': .1, 'power': 1., 'active_only': True}, UNIT, None, None, 0.608880),
    ('contrastive', {}, UNIT, listed, None, 1.082290),
    ('contrastive', {}, UNIT, None, None, 1.064613),
    ('contrastive', {'pos_margin': .2, 'neg_margin': .9, 'active_only': True}, UNIT, None, None, 0.939657),
    ('margin', {}, UNIT, listed, BETA * 0 + 1.2, 0.610954),
    ('margin', {'nu': .01}, UNIT, listed, BETA, 0.654287),
    ('multisimilarity', {}, UNIT, None, None, 0.576050),
    ('multisimilarity', {'margin': 2.}, UNIT, None, None, 0.742885),
    ('npair', {}, RAW, None, None, 1.484542),
    ('npair', {'negatives': 'pairs', 'l2': 0.}, RAW, pair_masks, None, 1.084425),
    ('angular', {}, RAW, None, None, 7.516809),
    ('lifted', {}, RAW, None, None, 2.296669),
    ('lifted', {'l2': 0.}, RAW, None, None, 2.291252),
    ('liftedstructure', {}, RAW, None, None, 4.665631),
    ('histogram', {'nbins': 11}, UNIT, None, None, 0.375244),
    ('histogram', {}, UNIT, None, None, 0.333333),
    ('proxynca', {}, UNIT, None, VECTORS, -1.947754),
    ('snr', {}, UNIT, listed, None, 2.304970),
    ('snr', {'reg_lambda': 0.}, UNIT, listed, None, 2.300170),
    ('softmax', {}, UNIT, None, VECTORS, 4.757040),
    ('softtriplet', {}, UNIT, None, CENTRES, 0.254955),
    ('softtriplet', {'reg_weight': 0.}, UNIT, None, CENTRES, 0.137591),
    ('softtriplet', {'lambda': 20., 'reg_weight': .2}, UNIT, None, CENTRES, 0.152148),
    ('arcface', {}, UNIT, None, VECTORS, 4.965025),
    ('ntxent', {}, UNIT, None, None, 7.079472),
    ('cosface', {}, UNIT, None, VECTORS, 21.601519),
    ('fastap', {}, UNIT, None, None, 0.410253),
    ('snr_contrastive', {'reg_lambda': .1}, UNIT, None, None, 4.765729),
    ('dr_triplet', {}, UNIT, listed, None, 0.248678),
    ('dr_triplet', {}, UNIT, cases.every_triple, None, 0.219843),
    ('dr_proxynca', {}, UNIT, None, VECTORS, 0.780327),
    ('dr_proxynca', {'gamma': 0.}, UNIT, None, VECTORS, 0.701524),
    ('dr_proxynca', {'scale': 3.}, UNIT, None, VECTORS, -2.021264),
    ('dr_proxynca', {'scale': 3., 'gamma': 0.}, UNIT, None, VECTORS, -1.947754),
    ('dr_multisimilarity', {}, UNIT, None, None, 0.567525),
    ('dr_multisimilarity', {'gamma': 0.}, UNIT, None, None, 0.568878),
    ('proxyanchor', {}, UNIT, None, VECTORS, 32.594533),
    ('proxynca_pp', {}, UNIT, None, VECTORS, 4.288202),
    ('circle', {}, UNIT, None, None, 101.607009),
    ('circle', {'margin': .25, 'gamma': 10.}, UNIT, None, None, 14.779502),
    ('supcon', {}, UNIT, None, None, 5.057405),
    ('subcenter_arcface', {'n_centers': 2}, UNIT, None, CENTRES, 2.963660),
    ('smoothap', {'temperature': .1}, UNIT, None, None, 0.160628),
    ('smoothap', {}, UNIT, None, None, .111264),
    ('recallatk', {'k': [1, 2], 'rank_temperature': .1}, UNIT, None, None, 0.610934),
    ('roadmap', {'lambda': 0.}, UNIT, None, None, 0.165846),
    ('roadmap', {'lambda': 0., 'offset': 1.44}, UNIT, None, None, 0.165845),
    ('roadmap', {'lambda': 1.}, UNIT, None, None, 0.720000),
    ('roadmap', {}, UNIT, None, None, 0.442923),
    ('hyperbolic', {}, RAW, None, None, 3.763481),
    ('oproxy', {}, UNIT, None, VECTORS, 32.594533),
    ('oproxy', {'mode': 'nca'}, UNIT, None, VECTORS, 23.673549),
    ('tcm', {}, UNIT, None, None, 0.781333),
    ('tcm', {'margin_neg': .6}, UNIT, None, None, 0.720000),
    ('pfml', {'alpha': 2., 'delta': .8}, UNIT, None, VECTORS[:, None], 64.003425),
    ('pfml', {}, UNIT, None, VECTORS[:, None], 31801.528493),
    ('dcl', {}, UNIT, None, None, 3.773321),
    ('dcl', {'temperature': .5}, UNIT, None, None, 1.450295),
    ('dcl', {'weighted': True}, UNIT, None, None, 9.157375),
    ('mfcont', {'reg_weight': 1.}, UNIT, None, VECTORS, 0.400707),
    ('mfcont', {'neg_margin': 1., 'reg_weight': 1.}, UNIT, None, VECTORS, 1.363578),
    ('mfcwms', {}, UNIT, None, VECTORS, 69.419666),
    ('mfcwms', {'alpha': 2., 'beta': 40., 'margin': .5}, UNIT, None, VECTORS, 0.619618),
    ('mfcwms', {'alpha': 2., 'beta': 40., 'margin': .5, 'reg_weight': 1.}, UNIT, None, VECTORS, 0.632703),
    ('mfcwms', {'alpha': 2., 'beta': 40., 'margin': .5}, UNIT, None, FIVE, 0.871343),
    ('contextual', {}, UNIT, None, None, 0.951714),
    ('contextual', {'contrastive_weight': 0., 'reg_weight': 0.}, UNIT, None, None, .4 * 0.255642),
    ('contextual', {'contrastive_weight': 0., 'reg_weight': 0., 'k': 2}, UNIT, None, None, .4 * 0.066406),
    ('contextual', {'contrastive_weight': .2, 'reg_similarity': .3, 'context_weight': .8}, UNIT, None, None, 0.544145),
    ('antico', {'pos_alpha': 32., 'neg_alpha': 32.}, UNIT, None, VECTORS, 0.576560),
    ('antico', {'pos_alpha': 32., 'neg_alpha': 32., 'type': 'pair'}, UNIT, None, VECTORS, 0.543031),
    ('antico', {'w_align': 0., 'rate_term': 'linear'}, UNIT, None, VECTORS, -1.383838),
    ('antico', {'w_align': 0., 'rate_term': 'linear', 'type': 'pair'}, UNIT, None, VECTORS, -1.527461),
    ('ldam', {}, UNIT, None, VECTORS, 11.027614),
    ('ldam', {'weights_beta': .9999}, UNIT, None, VECTORS, 22.917865),
    ('dynamic_arcface', {'n_centers': 1, 'feature_scale': 30.}, UNIT, None, VECTORS[:, None], 8.237572),
    ('dynamic_arcface', {'n_centers': 2, 'feature_scale': 64.}, UNIT, None, CENTRES, 0.783335),
    ('happier', {'lambda': 0., 'offset': 1.44}, UNIT, None, VECTORS, 0.264054),
    ('happier', {'lambda': 0.}, UNIT, None, VECTORS, 0.264078),
    ('happier', {'offset': 1.44}, UNIT, None, VECTORS, 0.713352),
]


@pytest.mark.parametrize('loss, flags, batch, miner, weights, value', [
    pytest.param(*row, id=cases.named(row[:2]) + (', a list' if row[3] else '')) for row in NUMBERS])
def test_known_numbers(loss, flags, batch, miner, weights, value, opt):
    """Of the loss, and of the reference that the other tests hold it against."""
    namespace = cases.flags_of(opt, loss, flags, n_classes=3, embed_dim=3)
    criterion, recorder = cases.build(namespace, miner, weights)
    assert cases.fast(criterion, batch, LABELS).item() == pytest.approx(value, abs=5.1e-7)
    assert cases.slow(criterion, recorder, namespace, batch, LABELS).item() == pytest.approx(value, abs=5.1e-7)


def test_there_is_one_for_every_loss():
    elsewhere = {'center', 'quadruplet', 'hier', 'linear_classifier', 'nir', 's2sd'}
    assert {row[0] for row in NUMBERS} | elsewhere == set(cases.PUBLISHED)


def test_known_numbers_that_the_flags_do_not_reach(opt):
    """Of a function and of its reference."""
    def check(value, slow, expected):
        assert [float(value), float(slow)] == pytest.approx([expected] * 2, abs=5.1e-7)

    y, fourths = LABELS.tolist(), torch.tensor([4, 5, 4, 0, 2, 3])
    check(criteria.quadruplet.quadruplet_loss(UNIT, torch.tensor(TRIPLETS), fourths),
          references.quadruplet(UNIT, y, opt(), TRIPLETS, fourths.tolist()), .607620)
    beyond = torch.tensor([[-.8, -.6, 0]], dtype=cases.F64)                                  # θ + m > π
    check(criteria.arcface.arcface_loss(beyond, torch.tensor([0]), VECTORS),
          references.arcface(beyond, [0], opt(), VECTORS), 28.246371)
    biases = torch.tensor([1, 0, -1], dtype=cases.F64)
    check(criteria.linear_classifier.linear_classifier_loss(UNIT, LABELS, VECTORS, biases),
          references.linear_classifier(UNIT, y, opt(), VECTORS, biases), 1.600662)
    check(criteria.center.center_loss(UNIT, LABELS, VECTORS),        # (20 + 16.4 + 17.36 + 16.4 + .2 + 5.32) / 12
          references.center(UNIT, y, opt(), VECTORS), 6.306667)
    proxies = torch.tensor([(.9, .3, 0), (0, 1.2, .2), (.1, 0, .8), (-.5, .5, .5)], dtype=cases.F64)
    distances = criteria.hier.ball_distances(criteria.hier.to_ball(torch.cat([RAW, proxies])))
    assert float(distances[0, 1]) == pytest.approx(1.961816, abs=5.1e-7)
    silence = torch.zeros(2, 6, 4, dtype=cases.F64)
    for margin, expected in ((1., .717273), (.1, .017198)):
        violations, _ = criteria.hier.ancestor_violations(
            distances[:6, 6:], torch.tensor(TRIPLETS), torch.ones(len(TRIPLETS), dtype=cases.F64), silence, margin)
        check(violations.mean(), references.hier(RAW, y, opt(loss_hier_margin=margin), [
            (TRIPLETS, *silence.tolist()), ([], [], [])], proxies), expected)
    same = LABELS[:, None] == LABELS
    masks = same ^ torch.eye(6, dtype=torch.bool), ~same
    pairs = tuple(list(map(tuple, mask.nonzero().tolist())) for mask in masks)
    check(criteria.angular.angular_terms(RAW, *masks).mean(), sum(references.angular_terms(RAW, pairs, 45)) / 6,
          3.016134)


@pytest.mark.parametrize('weight', [1., .003])
def test_centres_move_by_the_rule_of_the_paper_whatever_the_weight(weight, opt):
    """Eq. 4 by hand, from the centres at which the loss was computed; not in evaluation, and not by an optimizer."""
    total = criteria.select(opt(loss='linear_classifier+center', loss_weights=[1., weight], batch_mining='none',
                                n_classes=4, embed_dim=3), [None, None])
    center = total.criteria[1]
    center.centers.copy_(torch.tensor([(3, 4, 0), (0, 4, 3), (7, 7, 7), (-1, 0, 1)]))
    labels = torch.tensor([0, 0, 1, 1, 3, 0])                                            # 3, 2, 0 and 1 samples
    total(batch=UNIT.float(), labels=labels)
    value = float(total.log['center_loss'])
    expected = torch.tensor([(3 - .5 * (2 + 2.2 + 2.64) / 4, 4 - .5 * (4 + 3.4 + 3.52) / 4, -.5 * .8 / 4),
                             (.5 * .48 / 3, 4 - .5 * 6.8 / 3, 3 - .5 * 4.56 / 3), (7, 7, 7),
                             (-1 + .5 * .4 / 2, 0, 1 - .5 * .2 / 2)])
    torch.testing.assert_close(center.centers, expected, rtol=0, atol=1e-6)
    assert value == pytest.approx((20 + 16.4 + 17.36 + 16.4 + .2 + 6.9696 + 12.3904 + .64) / 12)
    total.eval()(batch=UNIT.float(), labels=labels)
    torch.testing.assert_close(center.centers, expected, rtol=0, atol=1e-6)
    assert not any(parameter is center.centers for parameter in total.parameters())
    assert not criteria.needs_pairs(total)


def test_known_numbers_of_classes_of_other_sizes():
    """A batch of an unbalanced sampler, and class counts without a largest and a smallest class."""
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    assert float(criteria.dcl.dcl_loss(UNIT, labels)) == pytest.approx(-2.808703, abs=5.1e-7)
    labels, antico = torch.tensor([0, 0, 1, 1, 1, 1]), criteria.antico.antico_loss
    assert float(antico(UNIT, labels, VECTORS, align_weight=.0035)) == pytest.approx(0.679239, abs=5.1e-7)
    for scale, rate in (('code', .775509), ('coding_rate', 1.255352)):
        found = antico(UNIT, labels, VECTORS, align_weight=0, rate_scale=scale, rate_term='linear')
        assert float(found) == pytest.approx(-rate, abs=5.1e-7)
    equal = criteria.dynamic_arcface.dynamic_arcface_loss(UNIT, LABELS, CENTRES, torch.tensor([7, 7, 7]))
    assert equal == criteria.subcenter_arcface.subcenter_arcface_loss(UNIT, LABELS, CENTRES, .5, 80.)
    equal = criteria.ldam.ldam_loss(UNIT, LABELS, VECTORS, torch.tensor([7, 7, 7]), .35, 64., weights_beta=.9)
    assert float(equal) == pytest.approx(21.601519, abs=5.1e-7)                          # cosface
    limit, near = (criteria.ldam.ldam_loss(UNIT.float(), LABELS, VECTORS, torch.tensor([16, 4, 1]), weights_beta=beta)
                   for beta in (1., .99999999))
    assert float(near) == pytest.approx(float(limit), rel=1e-6)


@pytest.mark.parametrize('loss', ['dynamic_arcface', 'pfml', 'softtriplet', 'subcenter_arcface'])
def test_the_centres_of_classes_may_be_a_transposed_view(loss):
    function = getattr(criteria.CRITERIA[loss], f'{loss}_loss')
    more = [torch.tensor([16, 4, 1])] if loss == 'dynamic_arcface' else []
    found = function(UNIT, LABELS, CENTRES.transpose(0, 1).contiguous().transpose(0, 1), *more)
    assert found == function(UNIT, LABELS, CENTRES, *more)


def test_a_class_without_images_does_not_change_the_margins_of_the_others():
    vectors = torch.cat([VECTORS, VECTORS[:1] + 1])
    for loss, weights in ((criteria.ldam.ldam_loss, vectors),
                          (criteria.dynamic_arcface.dynamic_arcface_loss, vectors[:, None])):
        none, some = (loss(UNIT, LABELS, weights, torch.tensor([16, 4, 1, number])) for number in (0, 9))
        assert none == some


def test_the_gradient_of_contextual_is_that_of_the_authors_steps():
    """Of the first sample, (1, 0, 0); the first component, 1.089449, changes its norm only."""
    batch = UNIT.clone().requires_grad_()
    gradient, = torch.autograd.grad(criteria.contextual.contextual_loss(batch, LABELS), batch)
    assert gradient[0].tolist() == pytest.approx([0, .826296, -1.172252], abs=5.1e-7)


def test_the_weights_of_ldam_begin_after_their_delay(opt):
    criterion, _ = cases.build(cases.flags_of(opt, 'ldam', {'weights_beta': .9, 'weights_delay': 2}))
    values = [cases.fast(criterion, torch.eye(4), torch.arange(4), epoch=epoch).item() for epoch in (1, 2, 3)]
    plain, _ = cases.build(cases.flags_of(opt, 'ldam', {}), weights=criterion.weights.data)
    assert values[0] == values[1] == cases.fast(plain, torch.eye(4), torch.arange(4)).item() != values[2]


def test_the_noise_of_hier_is_finite_where_a_random_number_is_0(monkeypatch):
    monkeypatch.setattr(torch, 'rand', lambda shape, **kwargs: torch.zeros(shape, **kwargs))
    assert criteria.hier.gumbel(2, 3, like=UNIT).isfinite().all()


def test_known_numbers_of_nir(opt):
    """With two blocks, permutations and weights of their own."""
    namespace = cases.flags_of(opt, 'nir', {'nf_fc_depth': 2}, n_classes=3, embed_dim=3)
    criterion, _ = cases.build(namespace)
    criterion.proxies.data, flow = VECTORS.clone(), criterion.flow
    flow.orders = torch.tensor([[2, 1, 0], [0, 2, 1]])
    for k, nets in enumerate(flow.nets):
        for h, net, shape in ((2, nets[0], (4, 4)), (1, nets[1], (2, 5))):
            r, q = torch.meshgrid(*(torch.arange(n, dtype=cases.F64) for n in shape), indexing='ij')
            net[0] = torch.nn.Linear(*shape[::-1], bias=False)
            net[0].weight.data = .5 * torch.sin(1 + k + h + r + 2 * q)
            del net[2], net[1]
    points, log_determinant = flow(UNIT, torch.nn.functional.normalize(VECTORS, dim=1)[LABELS])
    surprise = points.square().sum(dim=1) / 2 - log_determinant
    assert surprise.tolist() == pytest.approx([3.127117, .362391, -.507979, -.807761, .443270, 5.770923], abs=5.1e-7)
    for weight, value in ((.01, 58.273295), (.0075, 58.191809)):
        found = criteria.nir.nir_loss(UNIT, LABELS, VECTORS, flow, weight)
        assert found.item() == pytest.approx(value, abs=5.1e-7)
    unbalanced = torch.tensor([0, 0, 1, 1, 1, 2])
    assert float(criteria.oproxy.oproxy_loss(UNIT, unbalanced, VECTORS)) == pytest.approx(31.981003, abs=5.1e-7)


@pytest.mark.parametrize('temperature, weight, value', [(1., 0., 9.586251), (1., 50., 13.411369), (.5, 50., 9.978757)])
def test_known_numbers_of_s2sd(temperature, weight, value):
    i = torch.arange(1, 7, dtype=cases.F64)[:, None]
    larger = [torch.cos(b * i * torch.arange(1, 5)) for b in (1, 2)]
    features = 1 + torch.sin(i * torch.arange(1, 6))

    def loss(batch):
        return criteria.multisimilarity.multisimilarity_loss(batch, LABELS)

    found = criteria.s2sd.s2sd_loss(UNIT, features, [lambda _, rows=rows: rows for rows in larger], loss, [loss, loss],
                                    temperature, feature_weight=weight)
    assert found.item() == pytest.approx(value, abs=5.1e-7)
