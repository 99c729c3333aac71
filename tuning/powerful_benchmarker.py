"""
Experiments of powerful-benchmarker (Musgrave et al., A Metric Learning Reality Check) as command lines of main.py:
--reproduce_results FOLDER reads the options in FOLDER/configs/config_*.yaml. Each option is taken out of them by the
function that knows its flag; what is left over has no counterpart.
"""
import shlex
from pathlib import Path

import torch

import optimization
import parameters
from utilities import command_line
from utilities.errors import UserError

DATASETS = {'CUB200': 'cub200', 'Cars196': 'cars196', 'StanfordOnlineProducts': 'online_products'}
TRUNKS = {'bninception', 'resnet50', 'googlenet', 'mobilenet_v2'}                # others are pretrainedmodels:NAME
METRICS = {'mean_average_r_precision': 'map_at_r', 'NMI': 'nmi', 'AMI': 'ami', 'r_precision': 'r_precision',
           'precision_at_1': 'precision_at_1', 'mean_average_precision': 'mAP_lim'}
REFERENCES = {'compared_to_self': 'self', 'compared_to_training_set': 'train', 'compared_to_sets_combined': 'all'}
SCHEMES = {'old_approach': 'half', 'predefined': 'predefined', None: 'class_folds'}
CROP = {'Resize': {'size': 256}, 'RandomResizedCrop': {'scale': [0.16, 1], 'ratio': [0.75, 1.33], 'size': 227},
        'RandomHorizontalFlip': {'p': 0.5}}                                      # --augmentation mlrc
CENTRE = {'Resize': {'size': 256}, 'CenterCrop': {'size': 227}}
# values by which an option adds nothing to what main.py does anyway
USUAL = {'training_method': {'MetricLossOnly': {}}, 'testing_method': {'GlobalEmbeddingSpaceTester': {}},
         'test_size': 0.5, 'test_start_idx': 0.5, 'label_hierarchy_level': 0, 'special_split_scheme_name': None,
         'eval_size_of_tsne': 0, 'meta_testing_method': None, 'eval_pca': None, 'patience': None}
# options without influence on results
MACHINE = {'pytorch_home', 'dataset_root', 'root_experiment_folder', 'experiment_name', 'eval_dataloader_num_workers',
           'eval_batch_size'}
# options that the supplement of the paper tells its readers to delete, by loss
OBSOLETE = {'ContrastiveLoss': {'avg_non_zero_only', 'use_similarity'}, 'TripletMarginLoss': {'avg_non_zero_only'},
            'SignalToNoiseRatioContrastiveLoss': {'avg_non_zero_only'}}
PLAIN = {'num_epochs_train': 'n_epochs', 'iterations_per_epoch': 'iterations_per_epoch', 'save_interval': 'eval_every',
         'patience': 'patience', 'dataloader_num_workers': 'kernels', 'batch_size': 'bs',
         'num_training_partitions': 'n_folds', 'num_training_sets': 'n_training_folds', 'eval_pca': 'pca',
         'eval_normalize_embeddings': 'eval_normalize', 'eval_use_trunk_output': 'eval_features',
         'check_untrained_accuracy': 'check_untrained_accuracy', 'eval_batch_size': 'eval_bs'}


def command(given):
    """
    The arguments of main.py for the experiment of --reproduce_results; prints the command line, and what was dropped.

    given: the arguments of the command line.

    Raises UserError that names the options without a counterpart, unless --reproduce_results_partly is given.
    """
    opt = parameters.build().parse_args(given)
    folder, partly = opt.reproduce_results, opt.reproduce_results_partly
    if not folder:
        raise UserError('--reproduce_results_partly goes with --reproduce_results')
    settings, missing, notes = translated(options_in(Path(folder)))
    arguments = command_line.tokens(settings)
    print('\n'.join([shlex.join(['python', 'main.py', *arguments]), *(f'Note: {note}' for note in notes)]), flush=True)
    if missing and not partly:
        raise UserError('\n'.join([f'--reproduce_results {folder}: without counterpart in main.py:',
                                   *(f'  {name}: {value}' for name, value in missing.items()),
                                   'add --reproduce_results_partly to train without them']))
    for name, value in missing.items():
        print(f'Left out: {name}: {value}')
    return arguments


def options_in(folder):
    """{option: value} of all configs/config_*.yaml of an experiment. Raises UserError where there is none."""
    files = sorted((folder / 'configs').glob('config_*.yaml'))
    if not files:
        raise UserError(f'--reproduce_results {folder}: there is no configs/config_*.yaml in this folder; give the '
                        'folder of an experiment of powerful-benchmarker')
    options = {}
    for file in files:
        try:
            content = command_line.read_yaml(file.read_text(encoding='utf-8'))
        except (OSError, ValueError) as error:
            raise UserError(f'--reproduce_results: {file}: not a YAML file of options: {error}') from None
        if not isinstance(content, dict | None):
            raise UserError(f'--reproduce_results: {file}: expected options and values')
        options |= content or {}
    return options


def translated(options):
    """{option: value} -> ({flag of main.py: value}, {option: value} without a counterpart, [notes])."""
    left, settings, notes = dict(options), {}, []
    for translate in (plain, data_set, splits, network, losses_and_miners, optimizers, images, evaluation):
        translate(left, settings, notes)
    missing = {name: value for name, value in left.items()
               if name not in MACHINE and not (name in USUAL and with_arguments(value) == with_arguments(USUAL[name]))}
    return settings, missing, notes


def plain(left, settings, notes):
    """The options that are a flag with the same value."""
    for option, flag in PLAIN.items():
        if left.get(option) is not None:
            settings[flag] = left.pop(option)


def data_set(left, settings, notes):
    name, arguments = only_one(left.get('dataset'))
    if name in DATASETS:
        settings['dataset'] = DATASETS[name]
        replace(left, 'dataset', arguments)


def splits(left, settings, notes):
    manager, arguments = only_one(left.get('split_manager'))
    scheme = left.get('special_split_scheme_name')
    if manager == 'MLRCSplitManager':
        settings['split_scheme'] = 'mlrc'
        replace(left, 'split_manager', arguments)
    elif scheme in SCHEMES:
        settings['split_scheme'] = SCHEMES[scheme]
        left.pop('special_split_scheme_name', None)
    if settings.get('split_scheme') in ('half', 'predefined'):
        settings.pop('n_folds', None)
        settings.pop('n_training_folds', None)
    else:
        settings['splits_to_eval'] = ['val']
        n_folds = settings.get('n_training_folds', settings.get('n_folds', 4))
        notes.append(f'a command trains one fold: repeat it with --fold 0 to {n_folds - 1} and --group NAME_fold0 ..., '
                     'and evaluate the runs by Evaluate_Ensemble.py')
        if left.pop('meta_testing_method', None):
            notes.append('Evaluate_Ensemble.py gives both the mean over folds and the concatenated embeddings')


def network(left, settings, notes):
    models = dict(left.get('models') or {})
    trunk, arguments = only_one(models.get('trunk'))
    if trunk and arguments.get('pretrained') in ('imagenet', True, None, False):
        settings['arch'] = ((trunk if trunk in TRUNKS else f'pretrainedmodels:{trunk}')
                            + '_frozen' * bool(left.pop('freeze_batchnorm', False)) + '_normalize')
        if 'pretrained' in arguments and not arguments.pop('pretrained'):
            settings['not_pretrained'] = True
        replace(models, 'trunk', arguments)
    kind, arguments = only_one(models.get('embedder'))
    if kind == 'MLP' and arguments.get('layer_sizes'):
        *hidden, settings['embed_dim'] = arguments.pop('layer_sizes')
        settings |= {'embed_layers': hidden} if hidden else {}
        replace(models, 'embedder', arguments)
    replace(left, 'models', models)


def losses_and_miners(left, settings, notes):
    """The metric loss and the miner of tuples, as classes of pytorch-metric-learning; and the sampler."""
    losses, miners = dict(left.get('loss_funcs') or {}), dict(left.get('mining_funcs') or {})
    name, arguments = only_one(losses.get('metric_loss'))
    if name:
        for option in sorted(OBSOLETE.get(name, set()) & arguments.keys()):
            notes.append(f'{option} of {name} is dropped, as the supplement of the paper says')
            del arguments[option]
        settings['loss'] = f'pml:{name}'
        settings |= {'loss_pml_args': [arguments]} if arguments else {}
        del losses['metric_loss']
        settings['batch_mining'] = 'none'
    if len(miners) == 1:
        name, arguments = only_one(next(iter(miners.values())))
        settings['batch_mining'] = f'pml:{name}'
        settings |= {'miner_pml_args': [arguments]} if arguments else {}
        miners = {}
    replace(left, 'loss_funcs', losses)
    replace(left, 'mining_funcs', miners)
    name, arguments = only_one(left.get('sampler'))
    if name == 'MPerClassSampler' and 'm' in arguments:
        settings |= {'data_sampler': 'class_random', 'samples_per_class': arguments.pop('m')}
        arguments.pop('length_before_new_iter', None)                           # iterations_per_epoch says it here
        replace(left, 'sampler', arguments)


def optimizers(left, settings, notes):
    """An optimizer each for the backbone, the embedding layer and the parameters of the loss."""
    given = dict(left.get('optimizers') or {})
    flags = {'trunk_optimizer': ('optim', 'lr', 'decay'),
             'embedder_optimizer': ('embed_optim', 'fc_lr', 'decay'),
             'metric_loss_optimizer': ('loss_optim', 'loss_pml_lr', 'loss_decay')}
    for part, (kind, lr, decay) in flags.items():
        name, arguments = only_one(given.get(part))
        if (name or '').lower() not in optimization.OPTIMIZERS:
            continue
        settings[kind] = name.lower()
        options = {'lr': lr, 'weight_decay': decay}
        options |= {'momentum': 'momentum'} if settings[kind] in ('sgd', 'rmsprop') else {}
        options |= {'eps': 'adam_eps'} if settings[kind] in ('adam', 'adamw') else {}
        defaults = optimization.OPTIMIZERS[settings[kind]]([torch.zeros(1, 1)]).defaults | {'lr': None}
        for option, flag in options.items():
            value = arguments.get(option, command_line.as_list(defaults.get(option)))
            if settings.get(flag, value) == value:                              # one decay for backbone and embedding
                arguments.pop(option, None)
                settings |= {flag: value} if value is not None else {}
            elif option in ('momentum', 'eps'):                                 # another one than the part before it
                arguments[option] = value
        own = {option: arguments.pop(option) for option in [*arguments] if option not in ('lr', 'weight_decay')}
        settings |= {f'{kind}_args': [own]} if own else {}
        replace(given, part, arguments)
    replace(left, 'optimizers', given)


def images(left, settings, notes):
    """The crops of the paper: the augmentation mlrc."""
    transforms = {name: with_arguments(value) for name, value in (left.get('transforms') or {}).items()}
    train, evaluated = transforms.get('train'), transforms.get('eval', CENTRE)
    if train in (CROP, {**CROP, 'RandomHorizontalFlip': {}}) and evaluated == CENTRE:
        settings['augmentation'] = 'mlrc'
        del left['transforms']


def evaluation(left, settings, notes):
    metric, reference = left.get('eval_metric_for_best_epoch'), left.get('eval_reference_set')
    if metric in METRICS:
        settings['storage_metrics'] = [METRICS[metric]]
        del left['eval_metric_for_best_epoch']
    if reference in REFERENCES:
        settings['eval_reference'] = REFERENCES[reference]
        del left['eval_reference_set']


def with_arguments(value):
    """A class by its name, or {name: arguments}, as {name: arguments}; another value unchanged."""
    if isinstance(value, str):
        return {value: {}}
    if not isinstance(value, dict):
        return value
    return {name: {} if arguments is None else arguments for name, arguments in value.items()}


def only_one(value):
    """(name, a copy of its arguments) of a class, 'NAME' or {NAME: arguments}; (None, {}) for anything else."""
    value = with_arguments(value)
    if not isinstance(value, dict) or len(value) != 1:
        return None, {}
    (name, arguments), = value.items()
    return name, dict(arguments) if isinstance(arguments, dict) else {}


def replace(options, name, rest):
    """Leaves of an option only the `rest` that has no counterpart."""
    options.pop(name, None)
    if rest:
        options[name] = rest
