"""
Experiments of powerful-benchmarker (Musgrave et al., A Metric Learning Reality Check) as command lines of main.py.

python -m tuning.powerful_benchmarker FOLDER [--partly] [FLAGS OF main.py]

It reads the options in FOLDER/configs (experiment_folder.py). The function that knows the flag for an option takes it
out of them, here, in experiment_losses.py or in experiment_images.py; options that are left over have no counterpart.
"""
import argparse
import os
import shlex
import sys
from pathlib import Path

import torch

import architectures
import optimization
from flags import command_line
from launching.process import MAIN
from tuning import experiment_folder, experiment_images, experiment_losses
from utilities.errors import UserError, exit_code

DATASETS = {'CUB200': 'cub200', 'Cars196': 'cars196', 'StanfordOnlineProducts': 'online_products'}
TRUNKS = ('bninception', 'resnet50', 'mobilenet_v2')                       # others have the prefix of their library
IMAGENET = {'input_mean': [0.485, 0.456, 0.406], 'input_std': [0.229, 0.224, 0.225]}
METRICS = {'mean_average_r_precision': 'map_at_r', 'mean_average_precision_at_r': 'map_at_r', 'NMI': 'nmi',
           'AMI': 'ami', 'r_precision': 'r_precision', 'precision_at_1': 'precision_at_1',
           'mean_average_precision': 'mAP_lim'}
REFERENCES = {'compared_to_self': 'self', 'compared_to_training_set': 'train', 'compared_to_sets_combined': 'all'}
SCHEMES = {'old_approach': 'half', 'predefined': 'predefined'}
# options with the value of a flag: {option: flag}
SAME_VALUE = {'num_epochs_train': 'n_epochs', 'iterations_per_epoch': 'iterations_per_epoch',
              'save_interval': 'eval_every', 'patience': 'patience', 'dataloader_num_workers': 'kernels',
              'batch_size': 'bs', 'num_training_partitions': 'n_folds', 'num_training_sets': 'n_training_folds',
              'eval_pca': 'pca', 'eval_normalize_embeddings': 'eval_normalize',
              'eval_use_trunk_output': 'eval_features', 'eval_batch_size': 'eval_bs',
              'check_untrained_accuracy': 'check_untrained_accuracy'}
# options without influence on results
WITHOUT_INFLUENCE = (
    'pytorch_home', 'dataset_root', 'root_experiment_folder', 'experiment_name', 'eval_dataloader_num_workers',
    'eval_size_of_tsne', 'skip_eval_if_already_done', 'skip_meta_eval_if_already_done', 'save_lists_in_db',
    'skip_ensemble_eval_if_already_done', 'log_data_to_tensorboard', 'save_figures_on_tensorboard',
    'override_required_compatible_factories', 'save_models', 'set_min_label_to_zero')
# values with which an option asks for what main.py does anyway; classes are compared without arguments
USUAL = {'label_hierarchy_level': 0, 'label_hierarchy_level of the tester': 0, 'hierarchy_level': 0,
         'data_and_label_getter_keys': ['data', 'label'], 'validation_split_name': 'val', 'split_to_aggregate': 'val',
         'ensemble: normalize_embeddings': True, 'ensemble: use_trunk_output': False, 'eval_visualizer': {},
         'skip_eval': False, 'api_parser': None, 'meta_testing_method': None, 'special_split_scheme_name': None,
         'class of the hooks': 'HookContainer', 'class of the aggregator': 'MeanAggregator', 'g_alone_epochs': 0,
         'metric_alone_epochs': 0}


def main(given):
    """Starts main.py in place of this program."""
    parser = argparse.ArgumentParser(
        prog='python -m tuning.powerful_benchmarker', allow_abbrev=False,
        description='Trains as an experiment of powerful-benchmarker: prints its command line of main.py, and runs it. '
                    'Further flags of main.py are appended.')
    parser.add_argument('folder', metavar='FOLDER', help='the options are in FOLDER/configs/config_*.yaml')
    parser.add_argument('--partly', action='store_true', help='leave out options that have no counterpart here')
    if given and given[0].startswith('--') and given[0] not in ('--help', '--partly'):
        raise UserError(f'{given[0]}: give FOLDER before the flags of main.py')
    opt, further = parser.parse_known_args(given)
    start([*command(opt.folder, opt.partly, further), *further])


def start(arguments):
    os.execv(sys.executable, [sys.executable, str(MAIN), *arguments])


def command(folder, partly=False, further=()):
    """
    The arguments of main.py for the experiment in a folder; prints the command line, and what was dropped. further:
    arguments that are appended.

    Raises UserError that names the options without a counterpart, unless they are left out `partly`.
    """
    try:
        options, notes = experiment_folder.read(Path(folder))
        settings, missing = translated(options, notes)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f'{folder}: an option has another kind of value than powerful-benchmarker gives it ({error})'
                        ) from error
    arguments = command_line.tokens(settings)
    lines = [f'Note: {note}' for note in dict.fromkeys(notes)]
    print('\n'.join([shlex.join(['python', 'main.py', *arguments, *further]), *lines]), flush=True)
    if missing and not partly:
        raise UserError('\n'.join([f'{folder}: without counterpart in main.py:',
                                   *(f'  {name}: {value}' for name, value in missing.items()),
                                   'add --partly to train without them']))
    for name, value in missing.items():
        print(f'Left out: {name}: {value}')
    return arguments


def translated(options, notes):
    """Options -> ({flag of main.py: value}, {option: value} without a counterpart); adds to the list of notes."""
    settings = {'scheduler': 'none'}
    for translate in (renamed_options, data_set, splits, network, experiment_losses.translate, optimizers,
                      experiment_images.translate, evaluation):
        translate(options, settings, notes)
    for name in WITHOUT_INFLUENCE:
        options.take(name)
    for name, usual in USUAL.items():
        value = options.values.get(name, usual)
        if type(value) is type(usual) and value == usual:
            options.values.pop(name, None)
    return settings, options.left_over()


def renamed_options(options, settings, notes):
    for option, flag in SAME_VALUE.items():
        value = options.take(option)
        if value is not None:
            settings[flag] = value


def data_set(options, settings, notes):
    name = options.class_of('dataset')
    if name in DATASETS:
        settings['dataset'] = DATASETS[name]
        arguments = options.arguments('dataset')
        arguments.take('root')
        if arguments.take('download'):
            notes.append('the data set is taken from --source_path; --download downloads it where that is possible')


def splits(options, settings, notes):
    """The split of classes; without folds, the program's validation split is the test split here."""
    settings['split_scheme'] = scheme = split_scheme(options, 'n_folds' in settings)
    variants = options.take('num_variants_per_split_scheme')
    for option, flag in (('test_size', 'test_size'), ('test_start_idx', 'test_start')):
        value = options.values.get(option)
        if scheme != 'mlrc' or value in (None, 0.5):
            options.take(option)
        if scheme == 'class_folds' and value is not None:
            settings[flag] = value
    evaluated = options.values.get('splits_to_eval') or ['val']
    if {*evaluated} <= {'train', 'val', 'test'}:
        options.take('splits_to_eval')
        settings['splits_to_eval'] = evaluated
    concatenates = options.class_of('meta_testing_method') == 'ConcatenateEmbeddings'
    if concatenates:
        options.arguments('meta_testing_method')
    if scheme in ('half', 'predefined'):
        without_folds(options, settings)
        return
    if variants is not None:
        settings.setdefault('n_folds', variants)
        notes.append('num_variants_per_split_scheme is the number of folds')
    n_folds = settings.get('n_training_folds', settings.get('n_folds', 4))
    notes.append(f'a command trains one fold: repeat it with --fold 0 to {n_folds - 1} and --group NAME_fold0 ..., '
                 'and evaluate the runs by Evaluate_Ensemble.py')
    if concatenates:
        notes.append('Evaluate_Ensemble.py gives both the mean over folds and the concatenated embeddings')


def split_scheme(options, has_partitions):
    """
    The --split_scheme; class_folds if the experiment has a scheme without a counterpart. has_partitions: whether the
    option num_training_partitions is given, as since 2020. In 2020, the scheme with folds is the one that later
    versions call MLRCSplitManager.
    """
    manager = options.class_of('class of the splits')                                # version of 2021
    scheme = options.values.get('special_split_scheme_name')
    schemes = options.group('split')                                                 # version of 2019
    if manager in ('MLRCSplitManager', 'ClassDisjointSplitManager'):
        options.take('class of the splits')
    if manager == 'MLRCSplitManager':
        return 'mlrc'
    if scheme is None and schemes.values.get('schemes') in [[name] for name in SCHEMES]:
        scheme, = schemes.take('schemes')
    if scheme in SCHEMES:
        options.take('special_split_scheme_name')
    if manager is None and scheme is None and has_partitions:
        return 'mlrc'
    return SCHEMES.get(scheme, 'class_folds')


def without_folds(options, settings):
    for flag in ('n_folds', 'n_training_folds'):
        settings.pop(flag, None)
    if 'patience' in settings:                                                       # it would stop by the test split
        options.values['patience'] = settings.pop('patience')
    evaluated = ['test' if name == 'val' else name for name in settings.get('splits_to_eval', ())]
    settings['splits_to_eval'] = [*dict.fromkeys(evaluated)]


def network(options, settings, notes):
    models = options.group('models')
    set_trunk(options, models, settings)
    if models.class_of('embedder') != 'MLP':
        if models.class_of('embedder') is None:
            models.absent.append('models.embedder')
        return
    arguments = models.arguments('embedder')
    *hidden, dim = arguments.values.get('layer_sizes') or [None]
    if dim is None:
        arguments.absent.append('models.embedder.MLP.layer_sizes')
        return
    arguments.take('layer_sizes')
    settings['embed_dim'] = dim
    if hidden:
        settings['embed_layers'] = hidden
        notes.append('with hidden layers, powerful-benchmarker has a ReLU before each of the first layers '
                     'of the MLP, and --embed_layers between the layers')


def names_in(library):
    return architectures.PREFIXES[library].names()


def set_trunk(options, models, settings):
    """Sets the backbone. The value of `pretrained` shows its library: imagenet in one, true in the other."""
    trunk = models.class_of('trunk')
    if trunk is None:
        models.absent.append('models.trunk')
        return
    given = models.values.get('trunk')
    given = given[trunk] if isinstance(given, dict) else None
    pretrained = (given or {}).get('pretrained', 'imagenet' if trunk in names_in('pretrainedmodels') else False)
    library = 'torchvision'
    if pretrained == 'imagenet' or trunk not in names_in(library):
        library = 'pretrainedmodels'
    if trunk not in (*TRUNKS, *names_in(library)):
        return
    arguments = models.arguments('trunk')
    arguments.take('pretrained')
    arch = trunk if trunk in TRUNKS else f'{library}:{trunk}'
    settings['arch'] = arch + '_frozen' * options.take('freeze_batchnorm', False)
    if not pretrained:
        settings['not_pretrained'] = True
    if trunk in ('googlenet', 'inception_v3'):
        arguments.take('aux_logits')                  # auxiliary classifiers, without influence
        if not arguments.take('transform_input', bool(pretrained)):
            settings |= IMAGENET                             # images for other networks are normalised in this way


def optimizers(options, settings, notes):
    """The optimizers of backbone, embedding layer and parameters of the loss; what has none is not trained."""
    given = options.group('optimizers')
    losses = settings.get('loss', '').split('+')
    flags = {'trunk_optimizer': ('optim', 'lr', 'decay'), 'embedder_optimizer': ('embed_optim', 'fc_lr', 'decay')}
    if any(loss.startswith('pml:') for loss in losses):
        flags['metric_loss_optimizer'] = ('loss_optim', 'loss_pml_lr', 'loss_decay')
    if 'linear_classifier' in losses:
        flags['classifier_optimizer'] = ('loss_optim', 'loss_linear_classifier_lr', 'loss_decay')
    if settings.get('daml'):
        flags['generator_optimizer'] = ('loss_optim', 'daml_lr', 'loss_decay')
    for part, (kind, rate, decay) in flags.items():
        if part not in given:
            settings[rate] = 0
            continue
        name = given.class_of(part).lower()
        if name not in optimization.OPTIMIZERS or settings.get(kind, name) != name:
            continue
        settings[kind] = name
        one_optimizer(given.arguments(part), settings, kind, rate, decay)


def one_optimizer(arguments, settings, kind, rate, decay):
    """The arguments of the optimizer in the flag `kind`; rate, decay: the flags of its learning rate and decay."""
    name = settings[kind]
    options = {'lr': rate, 'weight_decay': decay}
    options |= {'momentum': 'momentum'} if name in ('sgd', 'rmsprop') else {}
    options |= {'eps': 'adam_eps'} if name in ('adam', 'adamw') else {}
    own = {}
    defaults = optimization.OPTIMIZERS[name]([torch.zeros(1, 1)]).defaults
    for option, flag in options.items():
        value = arguments.values.get(option)
        value = command_line.as_list(defaults.get(option)) if value is None else value
        if settings.get(flag, value) == value:                      # backbone and embedding layer share a decay
            settings |= {flag: value} if value is not None else {}
        elif option in ('momentum', 'eps'):                                  # not that of the part before it
            own[option] = value
        else:
            continue
        arguments.take(option)
    for option in defaults:
        if option in arguments.values and option not in options:
            own[option] = arguments.take(option)
    settings |= {f'{kind}_args': [own]} if own else {}


def evaluation(options, settings, notes):
    for name in ('eval_metric_for_best_epoch', 'eval_primary_metric'):
        metric = options.values.get(name)
        if metric in METRICS:
            settings['storage_metrics'] = [METRICS[options.take(name)]]
    reference = options.values.get('eval_reference_set')
    if reference in REFERENCES:
        settings['eval_reference'] = REFERENCES[options.take('eval_reference_set')]
    if options.class_of('eval_accuracy_calculator') == 'AccuracyCalculator':
        options.arguments('eval_accuracy_calculator')
    if options.class_of('testing_method') == 'GlobalEmbeddingSpaceTester':
        options.arguments('testing_method')


if __name__ == '__main__':
    sys.exit(exit_code('powerful_benchmarker', lambda: main(sys.argv[1:])))
