"""tuning/powerful_benchmarker.py: an experiment folder of powerful-benchmarker as a command line of main.py."""
import argparse
import shlex

import pytest
import torch

import configuration
import main
from datasets import splits
from datasets.base import ImageTable
from tests.tuning.experiment_folders import CONFIGS, DATES, options_of, write
from tuning import powerful_benchmarker
from utilities import libraries
from utilities.errors import UserError, exit_code

FIRST, LAST = DATES[0], DATES[4]
EACH = [(date, config) for config in CONFIGS for date in DATES
        if not (config == 'old_approach' and date in (FIRST, LAST))]                # they have no option for it
SQUARE = {'transforms.train.Resize.size', 'transforms.eval.Resize.size'}
WITHOUT_COUNTERPART = {
    '224_random_crop': SQUARE, '299_random_resize': {'transforms.train.Resize.size'},
    'unsupervised': {'transforms.train', *(f'transforms.augmentation{n}' for n in (1, 2, 3))}}


def run(*arguments):
    """The exit code of the program, which starts main.py in this process."""
    codes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(powerful_benchmarker, 'start', lambda given: codes.append(main.main(given)))
        code = exit_code('powerful_benchmarker', lambda: powerful_benchmarker.main([*arguments]))
    return code or codes[0]


def translated(folder):
    """(the namespace of the command line for a folder, {option without a counterpart: its value as text}, printed)"""
    try:
        return vars(configuration.parse(powerful_benchmarker.command(folder))), {}
    except UserError as error:
        first, *lines, last = str(error).splitlines()
        assert first.endswith('without counterpart in main.py:') and '--partly' in last, error
    opt = configuration.parse(powerful_benchmarker.command(folder, partly=True))
    return vars(opt), dict(line.strip().split(': ', 1) for line in lines)


def expect(opt, **expected):
    assert {name: opt[name] for name in expected} == expected


@pytest.mark.parametrize('date, config', EACH)
def test_the_files_of_five_dates_translate_or_name_what_has_no_counterpart(date, config, tmp_path):
    opt, missing = translated(write(tmp_path, options_of(date, config)))
    expected = set(WITHOUT_COUNTERPART.get(config, ()))
    if date == FIRST:
        assert missing['split.schemes'] == "['medium']"
        expected.add('split.schemes')
    if config == 'old_approach' and date == DATES[3]:
        expected.add('patience')                     # it would stop by the test split, the only one beside training
    assert {*missing} == expected
    expect(opt, dataset='cub200', eval_every=2, iterations_per_epoch=100,
           eval_reference='all' if date == FIRST else 'self',
           splits_to_eval=['test' if config == 'old_approach' else 'val'],
           storage_metrics=['map_at_r'])


def test_an_experiment_is_a_command_line_of_main(tmp_path, capsys):
    files = options_of(DATES[3])
    files['general'] |= {'num_training_partitions': 10, 'num_training_sets': 5}
    files['models']['models']['embedder']['MLP']['layer_sizes'] = [256, 128]
    files['loss_and_miners']['loss_funcs']['metric_loss'] = {'ContrastiveLoss': {
        'pos_margin': 0.2, 'neg_margin': 0.4, 'use_similarity': False, 'avg_non_zero_only': True}}
    files['loss_and_miners']['mining_funcs'] = {'post_gradient_miner': {'MultiSimilarityMiner': {'epsilon': 0.1}}}
    arguments = powerful_benchmarker.command(write(tmp_path, files))
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == shlex.join(['python', 'main.py', *arguments])
    for option in ('use_similarity', 'avg_non_zero_only'):
        assert f'Note: {option} of ContrastiveLoss is dropped' in printed
    assert 'Note: with hidden layers' in printed and '--fold 0 to 4' in printed
    opt = vars(configuration.parse(arguments))
    expect(opt, dataset='cub200', split_scheme='mlrc', n_folds=10, n_training_folds=5, test_size=0.5,
           n_epochs=1000, eval_every=2, patience=9, iterations_per_epoch=100, kernels=2, bs=32, eval_bs=32,
           samples_per_class=4, arch='bninception_frozen_normalize', embed_dim=128, embed_layers=[256],
           loss='pml:ContrastiveLoss', loss_pml_args=[{'pos_margin': 0.2, 'neg_margin': 0.4}],
           batch_mining='pml:MultiSimilarityMiner', miner_pml_args=[{'epsilon': 0.1}], optim='rmsprop',
           embed_optim='rmsprop', lr=2e-6, fc_lr=2e-6, decay=2e-4, momentum=0.8, augmentation='mlrc', crop_scale=None,
           crop_ratio=None, input_size=None, eval_size=None, eval_resize=None, scheduler='none',
           storage_metrics=['map_at_r'], eval_reference='self', eval_normalize=True, splits_to_eval=['val'],
           eval_features=False, pca=0, not_pretrained=False)


@pytest.mark.parametrize('n_folds, n_classes', [(4, 196), (4, 200), (10, 200), (4, 22634)])
def test_the_folds_of_2020_have_the_classes_of_that_program(n_folds, n_classes, tmp_path):
    """Its rule: in a circle of the training classes, n / (2 folds) validation classes follow the training classes."""
    files = options_of('2020-03-20')
    files['general'] |= {'num_training_partitions': n_folds, 'num_training_sets': n_folds}
    opt, _ = translated(write(tmp_path, files))
    table = ImageTable([*range(n_classes)], [f'{i:05}' for i in range(n_classes)])
    half = n_classes // 2
    n_val = int(n_classes * 0.5 / n_folds)
    for fold in range(n_folds):
        start = int(fold / n_folds * half)
        train = [(start + i) % half for i in range(half - n_val)]
        val = [(start + i) % half for i in range(half - n_val, half)]
        found = splits.split(argparse.Namespace(**opt | {'fold': fold}), table)
        assert found == {'train': sorted(train), 'val': sorted(val), 'test': [*range(half, n_classes)]}


@pytest.mark.parametrize('date, scheme', [*((date, 'mlrc') for date in DATES[1:4]), (FIRST, 'class_folds'),
                                          (LAST, 'class_folds')])
def test_the_scheme_of_folds_follows_from_the_options(date, scheme, tmp_path):
    opt, _ = translated(write(tmp_path, options_of(date)))
    expect(opt, split_scheme=scheme, n_folds=4)


def test_another_test_range_in_2020_has_no_counterpart(tmp_path):
    files = options_of('2020-03-20')
    files['general'] |= {'test_size': 0.25}
    _, missing = translated(write(tmp_path, files))
    assert missing == {'test_size': '0.25'}


def test_similarities_in_a_contrastive_loss_stay_similarities(tmp_path):
    files = options_of(DATES[1])
    files['loss_and_miners']['loss_funcs']['metric_loss'] = {'ContrastiveLoss': {'use_similarity': True,
                                                                                 'pos_margin': 0.9}}
    opt, _ = translated(write(tmp_path, files))
    expect(opt, loss_pml_args=[{'distance': {'CosineSimilarity': {}}, 'pos_margin': 0.9}])


def test_regularisers_that_were_in_a_loss_are_the_librarys_of_today(tmp_path):
    """SoftTriple with centres of two classes, in place of the sum over pairs that the library had in May 2020."""
    files = options_of(DATES[1])
    losses = files['loss_and_miners']['loss_funcs']
    losses['metric_loss'] = {'SignalToNoiseRatioContrastiveLoss': {
        'pos_margin': 0, 'neg_margin': .47, 'regularizer_weight': .14}}
    snr, missing = translated(write(tmp_path / 'snr', files))
    assert not missing
    expect(snr, loss_pml_args=[{'pos_margin': 0, 'neg_margin': .47, 'embedding_reg_weight': .14,
                                'embedding_regularizer': {'ZeroMeanRegularizer': {}}}])
    losses['metric_loss'] = {'SoftTripleLoss': {'centers_per_class': 3, 'reg_weight': .4}}
    opt, missing = translated(write(tmp_path / 'soft', files))
    assert not missing
    batch, labels = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1])
    values = []
    for given in (opt['loss_pml_args'][0], {'centers_per_class': 3}):
        flags = argparse.Namespace(**opt | {'n_classes': 2, 'embed_dim': 5})
        criterion = libraries.PmlCriterion(flags, None, given)
        criterion.loss.fc.data = torch.linspace(-1, 1, 30).sin().reshape(5, 6)
        values.append(float(criterion(batch, labels)))
    centres = torch.nn.functional.normalize(criterion.loss.fc, dim=0)
    pairs = [(i, j) for start in (0, 3) for i, j in ((start, start + 1), (start, start + 2), (start + 1, start + 2))]
    old = sum(float((2 + 1e-5 - 2 * centres[:, i] @ centres[:, j]).sqrt()) for i, j in pairs) / len(pairs)
    assert values[0] - values[1] == pytest.approx(.4 * old, rel=1e-3)


@pytest.mark.parametrize('date', DATES)
def test_classification_losses_have_an_optimizer_and_what_has_none_is_not_trained(date, tmp_path):
    opt, _ = translated(write(tmp_path / 'softmax', options_of(date, 'softmax')))
    expect(opt, loss='pml:NormalizedSoftmaxLoss', batch_mining='none', samples_per_class=1, loss_optim='rmsprop',
           loss_pml_lr=0.004, loss_decay=1e-4)
    opt, _ = translated(write(tmp_path / 'contrastive', options_of(date, 'contrastive')))
    expect(opt, loss_pml_lr=0, loss_optim=None)
    files = options_of(date)
    del files['optimizers']['optimizers']['trunk_optimizer']
    opt, _ = translated(write(tmp_path / 'frozen', files))
    assert opt['lr'] == 0 < opt['fc_lr']


@pytest.mark.parametrize('date', DATES)
def test_the_methods_of_training_keep_their_weights_and_optimizers(date, tmp_path, capsys):
    own = {'loss_optim': 'adam', 'loss_decay': 1e-5}
    opt, _ = translated(write(tmp_path / 'daml', options_of(date, 'daml')))
    loss, miner = (('pml:MultiSimilarityLoss', 'pml:MultiSimilarityMiner') if date < '2020-05'
                   else ('pml:ContrastiveLoss', 'none'))
    # of the total: synthetic 0.2, generator 0.1, 0.3 and 0.4
    expect(opt, loss=f'{loss}+triplet', loss_weights=[1, 0.1], batch_mining=f'{miner}+random', daml=True,
           daml_real_weight=0, daml_weight=2, daml_reg_weight=3, daml_adv_weight=4, daml_layers=[1024], daml_lr=1e-4,
           daml_margin=0.02, loss_triplet_margin=0.02, loss_triplet_power=1, loss_triplet_active_only=True, **own)
    assert '--daml differs from DeepAdversarialMetricLearning' in capsys.readouterr().out
    opt, _ = translated(write(tmp_path / 'cascade', options_of(date, 'cascade')))
    # Mixed_5d and Mixed_6e are the last modules of the blocks 7 and 12, counted from the stem
    expect(opt, loss=loss, batch_mining=miner.replace('none', 'all'), cascade=[7, 12], cascade_fractions=[1, 1], bs=80,
           arch='torchvision:inception_v3_frozen', embed_dim=3 * (512 if date == FIRST else 128), eval_normalize=True)
    assert ('CascadedEmbeddings has a miner for each level' in capsys.readouterr().out) == (date < '2020-05')
    opt, _ = translated(write(tmp_path / 'classifier', options_of(date, 'classifier')))
    expect(opt, loss=f'{loss}+linear_classifier', loss_weights=[0, 1], arch='bninception_frozen', eval_normalize=True,
           loss_linear_classifier_lr=1e-4, **own)


def test_networks_and_crops(tmp_path):
    opt, _ = translated(write(tmp_path / '1', options_of(DATES[2], 'googlenet')))
    expect(opt, arch='torchvision:googlenet_normalize', bs=128, embed_dim=512, input_mean=[0.485, 0.456, 0.406])
    opt, _ = translated(write(tmp_path / '2', options_of(LAST, 'resnet50')))
    expect(opt, arch='resnet50_normalize', bs=128, not_pretrained=False)
    opt, _ = translated(write(tmp_path / '3', options_of(LAST, '224_random_crop')))
    expect(opt, augmentation='red', input_size=224, eval_size=None)
    opt, _ = translated(write(tmp_path / '4', options_of(LAST, '299_random_resize')))
    expect(opt, augmentation='mlrc', input_size=299, eval_size=None, eval_resize=337)
    files = options_of(FIRST)
    files['transforms']['transforms'] = {'train': {'RandomResizedCrop': {'size': 200, 'scale': '0.5 0.9'}},
                                         'eval': {'Resize': {'size': 230}, 'CenterCrop': {'size': 210}}}
    opt, missing = translated(write(tmp_path / '5', files))
    expect(opt, augmentation='base', input_size=200, crop_scale=[0.5, 0.9], crop_ratio=None, eval_size=210,
           eval_resize=230)
    assert missing['transforms.train.RandomHorizontalFlip'] == 'not there'
    for number, (trunk, arch) in enumerate([('bninception', 'bninception'), ({'xception': {'pretrained': None}},
                                                                             'pretrainedmodels:xception'),
                                            ({'resnet18': {'pretrained': True}}, 'torchvision:resnet18')]):
        files = options_of(DATES[3])
        files['models']['models']['trunk'] = trunk
        opt, _ = translated(write(tmp_path / arch, files))
        expect(opt, arch=f'{arch}_frozen_normalize', not_pretrained=number == 1)
    files = options_of(DATES[3])
    files['models']['models']['trunk'] = {'no_such_network': {'pretrained': 'imagenet'}}
    opt, missing = translated(write(tmp_path / '6', files))
    assert 'no_such_network' in missing['models.trunk']


@pytest.mark.parametrize('date', DATES)
def test_an_experiment_that_was_resumed_has_its_last_options(date, tmp_path, capsys):
    adam = {'optimizers': {name: {'Adam': {'lr': 0.01}} for name in ('trunk_optimizer', 'embedder_optimizer')}}
    folder = write(tmp_path, options_of(date), resumed={
        '100_30': {'general': {'num_epochs_train': 150}}, '90_30': {'general': {'num_epochs_train': 120},
                                                                    'optimizers': adam}})
    opt, _ = translated(folder)
    expect(opt, n_epochs=150, optim='adam', lr=0.01, fc_lr=0.01, decay=0)
    assert 'Note: the experiment was resumed with another optimizers at epoch 90 30;' in capsys.readouterr().out
    (folder / 'configs' / 'resume_training_config_diffs_latest').mkdir()
    with pytest.raises(UserError, match='resume_training_config_diffs_latest: expected'):
        powerful_benchmarker.command(folder)


def test_what_has_no_counterpart_stops_the_run_unless_it_is_left_out(tmp_path, quick, capsys):
    files = options_of(DATES[2])
    files['general'] |= {'training_method': 'CascadedEmbeddings', 'a_new_option': 3}
    files['optimizers']['optimizers']['trunk_optimizer'] = {'LBFGS': {'lr': 1e-6}}
    files['loss_and_miners']['loss_funcs']['metric_loss']['MultiSimilarityLoss']['old_argument'] = 2
    files['loss_and_miners']['mining_funcs']['subset_batch_miner'] = {'MaximumLossMiner': {'output_batch_size': 8}}
    folder = write(tmp_path / 'experiment', files)
    assert run(str(folder)) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith('python main.py --') and '--partly' in printed.err
    for option in ('training_method: CascadedEmbeddings', 'a_new_option: 3', 'optimizers.trunk_optimizer: {',
                   'loss_funcs.metric_loss.MultiSimilarityLoss.old_argument: 2', 'mining_funcs.subset_batch_miner: {'):
        assert f'  {option}' in printed.err
    assert run(str(folder), '--partly', *quick, *SMALL) == 0
    assert 'Left out: a_new_option: 3' in capsys.readouterr().out


SMALL = ['--n_epochs', '1', '--iterations_per_epoch', '1', '--bs', '8', '--eval_resize', '18', '--evaluation_metrics',
         'map_at_r']


@pytest.mark.parametrize('date, config', [*((date, 'default') for date in DATES), (DATES[1], 'daml'),
                                          (DATES[2], 'softmax'), (DATES[2], 'cascade'), (LAST, 'classifier')])
def test_experiments_train(date, config, tmp_path, quick):
    """An epoch of one batch, with a small network on small images."""
    files = options_of(date, config)
    files['general'].pop('split', None)
    folder = write(tmp_path / 'experiment', files)
    network = {'classifier': ['--arch', 'conv4'], 'cascade': ['--cascade', '1', '2', '--embed_dim', '15']}
    assert run(str(folder), *quick, *SMALL, *network.get(config, [])) == 0


def test_optimizers_of_any_kind_keep_their_arguments(tmp_path):
    given = {'trunk_optimizer': {'NAdam': {'lr': 1e-6, 'momentum_decay': 1e-8}},
             'embedder_optimizer': {'AdamW': {'lr': 1e-5, 'weight_decay': 0, 'amsgrad': True, 'betas': [.8, .9]}},
             'metric_loss_optimizer': {'SGD': {'lr': .1, 'nesterov': True, 'momentum': .8}}}
    files = options_of(DATES[1]) | {'optimizers': {'optimizers': given}}
    opt, _ = translated(write(tmp_path, files))
    expect(opt, optim='nadam', optim_args=[{'momentum_decay': 1e-8}], lr=1e-6, decay=0, fc_lr=1e-5, embed_optim='adamw',
           embed_optim_args=[{'amsgrad': True, 'betas': [.8, .9]}], loss_optim='sgd',
           loss_optim_args=[{'nesterov': True}], momentum=.8, loss_decay=0)


def test_the_scheduler_and_the_clipping_of_an_optimizer_are_named_as_without_counterpart(tmp_path):
    files = options_of(LAST)
    given = {'scheduler': {'StepLR': {'step_size': 2}}, 'clip_grad_norm': 1}
    files['optimizers']['optimizers']['trunk_optimizer']['RMSprop'] |= given
    opt, missing = translated(write(tmp_path, files))
    assert missing == {f'optimizers.trunk_optimizer.RMSprop.{name}': str(value) for name, value in given.items()}
    expect(opt, optim='rmsprop', lr=2e-6, momentum=.8)


@pytest.mark.parametrize('given', ['Adam', {'Adam': None}, {'Adam': {}}])
def test_an_optimizer_without_a_learning_rate_has_the_one_of_torch(given, tmp_path):
    files = options_of(DATES[1])
    files['optimizers']['optimizers'] = {'trunk_optimizer': given, 'embedder_optimizer': {'Adadelta': None}}
    opt, _ = translated(write(tmp_path, files))
    expect(opt, optim='adam', lr=1e-3, decay=0, adam_eps=1e-8, embed_optim='adadelta', fc_lr=1.0)


@pytest.mark.parametrize('file, text, sentence', [
    (None, None, 'there is no configs/config_'), ('eval', 'a: [', 'not a YAML file'),
    ('eval', '- 1', 'expected options and values'), ('models', '', 'have no option models'),
    ('models', 'models: 3', 'an option has another kind of value'),
    ('models', 'models: {trunk: {resnet50: {}, bninception: {}}}', 'models.trunk has several classes'),
    ('models', 'models: {trunk: resnet50, embedder: {MLP: {layer_sizes: 3}}}', 'an option has another kind of value'),
    ('general', 'num_epochs_train: many', '--n_epochs: expected a whole number')])
def test_a_folder_that_is_no_experiment_is_refused(file, text, sentence, tmp_path, capsys):
    if file:
        folder = write(tmp_path, options_of(DATES[4]))
        (folder / 'configs' / f'config_{file}.yaml').write_text(text)
    assert run(str(tmp_path)) == 2
    assert sentence in capsys.readouterr().err
