"""The recipes of A Metric Learning Reality Check: whole runs, with the published numbers."""
import math

import pytest

import batch_mining
import configuration
import criteria
from tests.helpers import ROOT, csv_rows

RECIPES = ROOT / 'configs' / 'mlrc'
PAIRS = sorted((file.parent.name, file.stem) for file in RECIPES.glob('*/*.yaml'))
COLUMNS = {'cub200': 'CUB200', 'cars196': 'Cars196', 'online_products': 'SOP', 'cub200_bs256': 'CUB200 batch 256'}
CLASSIFICATION = {'proxynca', 'softmax', 'cosface', 'arcface', 'softtriple'}


def parse(recipe, loss):
    return configuration.parse(['--config', str(RECIPES / f'{recipe}.yaml'), str(RECIPES / recipe / f'{loss}.yaml')])


def times(factor):
    return lambda text: factor * float(text)


def regulariser(text):
    """None was tuned on SOP; theirs counted half as much then."""
    return 0.0 if text == 'N/A' else 2 * float(text)


BOUNDARY = {'beta lr': ('margin_beta_lr', float), 'margin': ('margin_margin', float),
            'init beta': ('margin_beta', float)}
SIMILARITIES = {'alpha': ('multisimilarity_pos_weight', float), 'beta': ('multisimilarity_neg_weight', float),
                'base': ('multisimilarity_thresh', float)}
# file -> (row of the table, its parameters -> (flag without loss_, what it takes of the table's text))
ROWS = {
    'contrastive': ('Contrastive', {'pos_margin': ('contrastive_pos_margin', float),
                                    'neg_margin': ('contrastive_neg_margin', float)}),
    'triplet': ('Triplet', {'margin': ('triplet_margin', float)}),
    'ntxent': ('NTXent', {'temperature': ('ntxent_temperature', float)}),
    'proxynca': ('ProxyNCA', {'proxy lr': ('proxynca_pp_lrmulti', times(1e6)),
                              'softmax_scale': ('proxynca_pp_scale', lambda text: math.sqrt(float(text)))}),
    'margin': ('Margin', BOUNDARY),
    'margin_class': ('Margin / class', BOUNDARY),
    'softmax': ('Normalized Softmax', {'weights lr': ('softmax_lr', float),
                                       'temperature': ('softmax_temperature', float)}),
    'cosface': ('CosFace', {'weights lr': ('cosface_lr', float), 'margin': ('cosface_margin', float),
                            'scale': ('cosface_scale', float)}),
    'arcface': ('ArcFace', {'weights lr': ('arcface_lr', float),
                            'margin': ('arcface_angular_margin', times(math.pi / 180)),
                            'scale': ('arcface_feature_scale', float)}),
    'fastap': ('FastAP', {'num_bins': ('fastap_nbins', int)}),
    'snr_contrastive': ('SNR Contrastive', {'pos_margin': ('snr_contrastive_pos_margin', float),
                                            'neg_margin': ('snr_contrastive_neg_margin', float),
                                            'regularizer_weight': ('snr_contrastive_reg_lambda', float)}),
    'multisimilarity': ('Multi Similarity', SIMILARITIES),
    'multisimilarity_miner': ('Multi Similarity + Miner',
                              SIMILARITIES | {'epsilon': ('multisimilarity_margin', float)}),
    'softtriple': ('SoftTriple', {'weights lr': ('softtriplet_lrmulti', times(1e6)),
                                  'la': ('softtriplet_lambda', float), 'gamma': ('softtriplet_gamma', float),
                                  'reg_weight': ('softtriplet_reg_weight', regulariser),
                                  'margin': ('softtriplet_margin_delta', float)}),
}


def test_every_algorithm_has_a_recipe_for_every_data_set():
    assert PAIRS == sorted((recipe, loss) for recipe in COLUMNS for loss in ROWS)


@pytest.mark.parametrize('recipe, loss', PAIRS)
def test_a_recipe_is_a_whole_run(recipe, loss):
    opt = parse(recipe, loss)
    large = recipe == 'cub200_bs256'
    assert opt.dataset == recipe.removesuffix('_bs256') and opt.split_scheme == 'mlrc' and opt.splits_to_eval == ['val']
    assert (opt.arch, opt.embed_dim, opt.augmentation) == ('bninception_frozen_normalize', 128, 'mlrc')
    assert (opt.optim, opt.momentum, opt.lr, opt.fc_lr, opt.decay) == ('rmsprop', .9, 1e-6, -1, 1e-4)
    assert opt.loss_decay == (0 if loss.startswith('margin') else 1e-4)
    assert (opt.bs, opt.samples_per_class) == (256 if large else 32, 1 if loss in CLASSIFICATION else 4)
    assert opt.data_sampler == ('balanced' if large and loss in CLASSIFICATION else 'class_random')
    validation = {'cars196': (5, 14), 'online_products': (20, 39)}.get(recipe, (2, 9))
    assert (opt.eval_every, opt.patience, opt.iterations_per_epoch, opt.n_epochs) == (*validation, 100, 1000)
    assert opt.storage_metrics == ['map_at_r'] and {'precision_at_1', 'r_precision'} < set(opt.evaluation_metrics)
    opt.n_classes = 5
    criterion = criteria.select(opt, batch_mining.select(opt))
    rate = {'softtriple': 'weights lr', 'proxynca': 'proxy lr'}.get(loss)
    if rate:
        assert criterion.parameter_groups()[0]['lr'] == pytest.approx(
            getattr(opt, 'loss_' + ROWS[loss][1][rate][0]) * 1e-6)


def test_the_recipes_have_the_published_numbers(shared):
    table = csv_rows(shared / 'reference' / 'mlrc_optimal_hyperparameters.csv')
    for recipe, loss in PAIRS:
        opt = parse(recipe, loss)
        row, flags = ROWS[loss]
        published = {line['parameter']: line[COLUMNS[recipe]] for line in table if line['loss'] == row}
        found = {parameter: getattr(opt, f'loss_{flag}') for parameter, (flag, _) in flags.items()}
        assert published.keys() == found.keys()
        expected = {parameter: convert(published[parameter]) for parameter, (_, convert) in flags.items()}
        assert found == pytest.approx(expected, rel=1e-5), (recipe, loss)


def test_what_the_rows_mean():
    contrastive, triplet, margin, per_class = (parse('cub200', name) for name in (
        'contrastive', 'triplet', 'margin', 'margin_class'))
    assert {opt.batch_mining for opt in (contrastive, triplet, margin, per_class)} == {'all'}
    assert contrastive.loss_contrastive_active_only and triplet.loss_triplet_active_only
    assert triplet.loss_triplet_power == 1
    assert margin.loss_margin_beta_shared and not per_class.loss_margin_beta_shared
    assert parse('cub200', 'multisimilarity').loss_multisimilarity_margin == 2
    assert parse('cub200', 'arcface').loss_arcface_angular_margin == pytest.approx(0.40527, abs=1e-5)
    assert parse('cub200', 'proxynca').loss_proxynca_pp_scale == pytest.approx(3.739, abs=1e-3)
