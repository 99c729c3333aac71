"""The losses that pytorch-metric-learning has, too, give its values."""
import math

import pytest
import torch

import criteria
from tests.criteria import cases
from tests.criteria.test_known_numbers import BETA, CENTRES, LABELS, NUMBERS, RAW, UNIT, VECTORS, pair_masks


@pytest.fixture
def in_double():
    """Some of the other library's constants have torch's default type."""
    torch.set_default_dtype(cases.F64)
    yield
    torch.set_default_dtype(torch.float32)


def theirs():
    """The other library's losses that are the same."""
    losses = pytest.importorskip('pytorch_metric_learning.losses')
    from pytorch_metric_learning.distances import CosineSimilarity, DotProductSimilarity, LpDistance, SNRDistance
    from pytorch_metric_learning.miners import MultiSimilarityMiner
    from pytorch_metric_learning.reducers import MeanReducer
    from pytorch_metric_learning.regularizers import SparseCentersRegularizer, ZeroMeanRegularizer
    mean, plain, snr = MeanReducer(), LpDistance(normalize_embeddings=False), SNRDistance(normalize_embeddings=False)
    sized, mined = {'num_classes': 3, 'embedding_size': 3}, MultiSimilarityMiner(.1)
    sums = {'embedding_regularizer': ZeroMeanRegularizer()}

    def with_(loss, **parameters):
        for name, value in parameters.items():
            setattr(loss, name, torch.nn.Parameter(value.clone()))
        return loss

    def with_miner(loss):
        return lambda batch, labels: loss(batch, labels, mined(batch, labels))

    centres = CENTRES.flatten(0, 1)
    return {
        'triplet': losses.TripletMarginLoss(
            .2, distance=LpDistance(power=2, normalize_embeddings=False), reducer=mean),
        'triplet margin=0.1 power=1.0 active_only=True': losses.TripletMarginLoss(.1),
        'contrastive': losses.ContrastiveLoss(0, 1, distance=plain, reducer=mean),
        'contrastive pos_margin=0.2 neg_margin=0.9 active_only=True':
            losses.ContrastiveLoss(.2, .9, distance=plain),
        'margin': losses.MarginLoss(.2, 0, 1.2, distance=plain),
        'margin nu=0.01': with_(
            losses.MarginLoss(.2, .01, 1.2, distance=plain, learn_beta=True, num_classes=3), beta=BETA),
        'multisimilarity': with_miner(losses.MultiSimilarityLoss(2, 40, .5)),
        'multisimilarity margin=2.0': losses.MultiSimilarityLoss(2, 40, .5),
        'npair negatives=pairs l2=0.0': losses.NPairsLoss(distance=DotProductSimilarity(normalize_embeddings=False)),
        'lifted l2=0.0': losses.GeneralizedLiftedStructureLoss(1, 0, distance=plain, reducer=mean),
        'liftedstructure': losses.LiftedStructureLoss(1, 0, distance=plain),
        'histogram nbins=11': losses.HistogramLoss(n_bins=10),
        'histogram': losses.HistogramLoss(n_bins=64),
        'snr': losses.TripletMarginLoss(.2, distance=snr, embedding_reg_weight=.005, **sums),
        'softmax': with_(losses.NormalizedSoftmaxLoss(**sized, temperature=.05), W=VECTORS.T),
        'softtriplet reg_weight=0.0': with_(
            losses.SoftTripleLoss(**sized, centers_per_class=2, la=8, gamma=.1, margin=.01), fc=centres.T),
        'softtriplet': with_(losses.SoftTripleLoss(
            **sized, centers_per_class=2, la=8, gamma=.1, margin=.01, weight_reg_weight=.2,
            weight_regularizer=SparseCentersRegularizer(3, 2)), fc=centres.T),
        'arcface': with_(losses.ArcFaceLoss(**sized, margin=math.degrees(.5), scale=16), W=VECTORS.T),
        'cosface': with_(losses.CosFaceLoss(**sized, margin=.35, scale=64), W=VECTORS.T),
        'subcenter_arcface n_centers=2': with_(
            losses.SubCenterArcFaceLoss(**sized, margin=math.degrees(.5), scale=64, sub_centers=2), W=centres.T),
        'ntxent': losses.NTXentLoss(.07),
        'fastap': losses.FastAPLoss(10),
        'snr_contrastive reg_lambda=0.1': losses.SignalToNoiseRatioContrastiveLoss(
            pos_margin=0, neg_margin=1, distance=snr, embedding_reg_weight=.1, **sums),
        'proxyanchor': with_(losses.ProxyAnchorLoss(**sized, margin=.1, alpha=32), proxies=VECTORS),
        'proxynca_pp': with_(losses.ProxyNCALoss(**sized, softmax_scale=9), proxies=VECTORS),
        'circle': losses.CircleLoss(.4, 80),
        'supcon': losses.SupConLoss(.1),
        'tcm': losses.ThresholdConsistentMarginLoss(),
        'roadmap lambda=1.0': losses.ContrastiveLoss(pos_margin=.9, neg_margin=.6, distance=CosineSimilarity()),
    }


@pytest.mark.filterwarnings('ignore:Using a non-tuple sequence')
def test_agrees_with_pytorch_metric_learning(opt, in_double):
    """On the batch of six and, where classes may be larger, on a random one."""
    named = {cases.named(row[:2]): row[:2] for row in NUMBERS}
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 0, 0])
    batch = torch.randn(len(labels), 3, dtype=cases.F64, generator=torch.Generator().manual_seed(0))
    for name, other in theirs().items():
        loss, flags = named[name]
        weights = {'margin': BETA if flags else BETA * 0 + 1.2, 'softtriplet': CENTRES, 'subcenter_arcface': CENTRES}
        unit = loss in ('triplet', 'contrastive', 'margin', 'snr', 'snr_contrastive')
        batches = [(UNIT, LABELS), (torch.nn.functional.normalize(batch, dim=1), labels)] if unit else [
            (RAW, LABELS), (batch, labels)]
        criterion, _ = cases.build(cases.flags_of(opt, loss, flags, n_classes=3, embed_dim=3),
                                   pair_masks if loss == 'npair' else None, weights.get(loss, VECTORS))
        tolerance = 5e-7 if name == 'softtriplet' else 1e-8               # no 1e-5 under their regulariser's root
        for given in batches[:1 if loss == 'npair' else 2]:
            expected = pytest.approx(other(*given).item(), abs=tolerance)
            assert cases.fast(criterion, *given).item() == expected, name


def test_the_angular_term_agrees_with_pytorch_metric_learning(in_double):
    """Which leaves the negatives as long as they are, so on unit vectors only."""
    losses = pytest.importorskip('pytorch_metric_learning.losses')
    same = LABELS[:, None] == LABELS
    ours = criteria.angular.angular_terms(UNIT, same ^ torch.eye(6, dtype=torch.bool), ~same).mean()
    assert ours.item() == pytest.approx(losses.AngularLoss(alpha=45)(UNIT, LABELS).item(), abs=1e-8)
