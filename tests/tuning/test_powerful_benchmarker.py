"""tuning/powerful_benchmarker.py: an experiment folder of powerful-benchmarker as a command line of main.py."""
import shlex

import pytest
import yaml

import configuration
import main
from tuning import powerful_benchmarker

OPTIMIZER = {'RMSprop': {'lr': 1e-6, 'weight_decay': 1e-4, 'momentum': 0.9}}
OPTIONS = {
    'general': {
        'training_method': 'MetricLossOnly', 'testing_method': 'GlobalEmbeddingSpaceTester',
        'meta_testing_method': 'ConcatenateEmbeddings', 'dataset': {'CUB200': {}}, 'num_epochs_train': 1000,
        'iterations_per_epoch': 100, 'save_interval': 2, 'special_split_scheme_name': None, 'test_size': 0.5,
        'test_start_idx': 0.5, 'num_training_partitions': 10, 'num_training_sets': 5, 'label_hierarchy_level': 0,
        'dataloader_num_workers': 4, 'check_untrained_accuracy': True, 'patience': 9},
    'models': {'models': {'trunk': {'bninception': {'pretrained': 'imagenet'}},
                          'embedder': {'MLP': {'layer_sizes': [256, 128]}}},
               'batch_size': 32, 'freeze_batchnorm': True},
    'loss_and_miners': {
        'loss_funcs': {'metric_loss': {'ContrastiveLoss': {'pos_margin': 0.2, 'neg_margin': 0.4,
                                                           'use_similarity': False, 'avg_non_zero_only': True}}},
        'sampler': {'MPerClassSampler': {'m': 4}},
        'mining_funcs': {'post_gradient_miner': {'MultiSimilarityMiner': {'epsilon': 0.1}}}},
    'optimizers': {'optimizers': {'trunk_optimizer': OPTIMIZER, 'embedder_optimizer': OPTIMIZER}},
    'transforms': {'transforms': {'train': {
        'Resize': {'size': 256}, 'RandomResizedCrop': {'scale': [0.16, 1], 'ratio': [0.75, 1.33], 'size': 227},
        'RandomHorizontalFlip': {'p': 0.5}}, 'eval': {'Resize': {'size': 256}, 'CenterCrop': {'size': 227}}}},
    'eval': {'eval_reference_set': 'compared_to_self', 'eval_normalize_embeddings': True,
             'eval_use_trunk_output': False, 'eval_metric_for_best_epoch': 'mean_average_r_precision',
             'eval_pca': None, 'eval_size_of_tsne': 0, 'eval_dataloader_num_workers': 2},
}


def write(folder, **more):
    """The folder of an experiment with OPTIONS, changed by more = {file: options}."""
    (folder / 'configs').mkdir(parents=True)
    for name, options in OPTIONS.items():
        (folder / 'configs' / f'config_{name}.yaml').write_text(yaml.safe_dump(options | more.get(name, {})))
    return folder


def test_an_experiment_is_a_command_line_of_main(tmp_path, capsys):
    arguments = powerful_benchmarker.command(['--reproduce_results', str(write(tmp_path / 'experiment'))])
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == shlex.join(['python', 'main.py', *arguments])
    for option in ('use_similarity', 'avg_non_zero_only'):
        assert f'Note: {option} of ContrastiveLoss is dropped' in printed
    opt = vars(configuration.parse(arguments))
    expected = {
        'dataset': 'cub200', 'split_scheme': 'class_folds', 'n_folds': 10, 'n_training_folds': 5, 'n_epochs': 1000,
        'eval_every': 2, 'patience': 9, 'iterations_per_epoch': 100, 'kernels': 4, 'bs': 32, 'samples_per_class': 4,
        'arch': 'bninception_frozen_normalize', 'embed_dim': 128, 'embed_layers': [256], 'loss': 'pml:ContrastiveLoss',
        'loss_pml_args': [{'pos_margin': 0.2, 'neg_margin': 0.4}], 'batch_mining': 'pml:MultiSimilarityMiner',
        'miner_pml_args': [{'epsilon': 0.1}], 'optim': 'rmsprop', 'embed_optim': 'rmsprop', 'lr': 1e-6, 'fc_lr': 1e-6,
        'decay': 1e-4, 'momentum': 0.9, 'augmentation': 'mlrc', 'storage_metrics': ['map_at_r'],
        'eval_reference': 'self', 'splits_to_eval': ['val']}
    assert {name: opt[name] for name in expected} == expected


def test_what_has_no_counterpart_stops_the_run_unless_it_is_left_out(tmp_path, quick, capsys):
    folder = write(tmp_path / 'experiment', general={'training_method': 'CascadedEmbeddings', 'a_new_option': 3},
                   optimizers={'optimizers': {'trunk_optimizer': {'LBFGS': {'lr': 1e-6}}}})
    assert main.main(['--reproduce_results', str(folder)]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith('python main.py --') and '--reproduce_results_partly' in printed.err
    for option in ('training_method: CascadedEmbeddings', 'a_new_option: 3', "'trunk_optimizer': {'LBFGS'"):
        assert option in printed.err
    plain = ['--loss', 'contrastive', '--n_folds', '2', '--n_training_folds', '2', '--n_epochs', '0', '--embed_layers',
             '--augmentation', 'none', '--evaluation_metrics', 'map_at_r', '--no_train_metrics',
             '--optim', 'adam', '--embed_optim', 'adam', '--batch_mining', 'random']
    assert main.main(['--reproduce_results', str(folder), '--reproduce_results_partly', *quick, *plain]) == 0
    assert 'Left out: a_new_option: 3' in capsys.readouterr().out


def test_optimizers_of_any_kind_keep_their_arguments(tmp_path):
    given = {'trunk_optimizer': {'NAdam': {'lr': 1e-6, 'momentum_decay': 1e-8}},
             'embedder_optimizer': {'AdamW': {'lr': 1e-5, 'weight_decay': 0, 'amsgrad': True, 'betas': [.8, .9]}},
             'metric_loss_optimizer': {'SGD': {'lr': .1, 'nesterov': True, 'momentum': .8}}}
    folder = write(tmp_path / 'experiment', optimizers={'optimizers': given})
    opt = vars(configuration.parse(powerful_benchmarker.command(['--reproduce_results', str(folder)])))
    expected = {'optim': 'nadam', 'optim_args': [{'momentum_decay': 1e-8}], 'lr': 1e-6, 'decay': 0, 'fc_lr': 1e-5,
                'embed_optim': 'adamw', 'embed_optim_args': [{'amsgrad': True, 'betas': [.8, .9]}],
                'loss_optim': 'sgd', 'loss_optim_args': [{'nesterov': True}], 'momentum': .8, 'loss_decay': 0}
    assert {name: opt[name] for name in expected} == expected


@pytest.mark.parametrize('text, sentence', [(None, 'there is no configs/config_'), ('a: [', 'not a YAML file'),
                                            ('- 1', 'expected options and values')])
def test_a_folder_that_is_no_experiment_is_refused(text, sentence, tmp_path, capsys):
    if text:
        (tmp_path / 'configs').mkdir()
        (tmp_path / 'configs' / 'config_eval.yaml').write_text(text)
    assert main.main(['--reproduce_results', str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
