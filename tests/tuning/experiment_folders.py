"""Experiment folders in the form in which powerful-benchmarker saved them, at five dates, with options of our own."""
import copy

import yaml

DATES = ('2019-11-25', '2020-02-15', '2020-03-20', '2020-05-15', '2021-01-01')
ABSENT = ...
CROP = {'Resize': {'size': 256}, 'RandomResizedCrop': {'scale': '0.16 1', 'ratio': '0.75 1.33', 'size': 227},
        'RandomHorizontalFlip': {'p': 0.5}}
CENTRE = {'Resize': {'size': 256}, 'CenterCrop': {'size': 227}}
MINER = {'MultiSimilarityMiner': {'epsilon': 0.2}}
TRIPLET = {'TripletMarginLoss': {'margin': 0.02}}


def loss(date):
    if date < '2020-05':
        return {'MultiSimilarityLoss': {'alpha': 0.2, 'beta': 30, 'base': 0.6}}
    return {'ContrastiveLoss': None}


def miners(date):
    if date < '2020-05':
        return {'tuple_miner' if date > '2020-03' else 'post_gradient_miner': copy.deepcopy(MINER)}
    return {}


def optimizer(date):
    if date < '2020-05':
        return {'Adam': {'lr': 2e-5, 'weight_decay': 3e-5}}
    return {'RMSprop': {'lr': 2e-6, 'weight_decay': 2e-4, 'momentum': 0.8}}


def default(date):
    """{file: options} of the program's own settings at a date: its keys, and the types of its values."""
    is_first, is_last = date == DATES[0], date == DATES[4]
    files = {
        'loss_and_miners': {'loss_funcs': {'metric_loss': loss(date)}, 'mining_funcs': miners(date),
                            'sampler': {'MPerClassSampler': {'m': 4 if date > '2020-05' else 8}}},
        'models': {'models': {'trunk': {'bninception': {'pretrained': 'imagenet'}},
                              'embedder': {'MLP': {'layer_sizes': [512 if is_first else 128]}}}},
        'optimizers': {'optimizers': {'trunk_optimizer': optimizer(date), 'embedder_optimizer': optimizer(date)}},
        'transforms': {'transforms': {'train': copy.deepcopy(CROP), 'eval': copy.deepcopy(CENTRE)}}}
    if is_last:
        return files | newest()
    files['models'] |= {'batch_size': 128 if is_first else 32, 'freeze_batchnorm': True}
    files['general'] = {
        'training_method': 'MetricLossOnly', 'testing_method': 'GlobalEmbeddingSpaceTester',
        'dataset': {'CUB200': None}, 'num_epochs_train': 1000 if date > '2020-05' else 4, 'iterations_per_epoch': 100,
        'save_interval': 2, 'label_hierarchy_level': 0, 'dataloader_num_workers': 32 if is_first else 2,
        'check_untrained_accuracy': not is_first}
    files['eval'] = {
        'eval_reference_set': 'compared_to_sets_combined' if is_first else 'compared_to_self',
        'eval_normalize_embeddings': True, 'eval_use_trunk_output': False, 'eval_batch_size': 32,
        'eval_dataloader_num_workers': 32 if is_first else 2}
    if date < '2020-03':
        files['eval'] |= {'eval_metric_for_best_epoch': 'mean_average_r_precision'}
    else:
        files['eval'] |= {'eval_primary_metric': 'mean_average_precision_at_r'}
    if is_first:
        files['general'] |= {'split': {'schemes': ['medium']}, 'num_variants_per_split_scheme': 4, 'skip_eval': False}
        return files
    files['general'] |= {
        'special_split_scheme_name': None, 'test_size': 0.5, 'test_start_idx': 0.5, 'num_training_partitions': 4,
        'num_training_sets': 4, 'patience': 9 if date > '2020-05' else None,
        'meta_testing_method': 'ConcatenateEmbeddings'}
    files['eval'] |= {'eval_pca': None}
    if date < '2020-05':
        files['eval'] |= {'eval_size_of_tsne': 0}
    else:
        files['eval'] |= {'eval_accuracy_calculator': {'AccuracyCalculator': None}}
        files['general'] |= {'skip_eval_if_already_done': True, 'skip_meta_eval_if_already_done': True}
    return files


def newest():
    """The groups of 2021, and the files beside the options."""
    return {
        'dataset': {'dataset': {'CUB200': None}, 'splits_to_eval': ['val'], 'split_manager': {
            'ClassDisjointSplitManager': {
                'test_size': 0.5, 'test_start_idx': 0.5, 'num_training_partitions': 4, 'num_training_sets': 4,
                'hierarchy_level': 0, 'data_and_label_getter_keys': ['data', 'label']}}},
        'general': {
            'trainer': {'MetricLossOnly': {
                'iterations_per_epoch': 100, 'dataloader_num_workers': 2, 'batch_size': 32,
                'freeze_trunk_batchnorm': True, 'label_hierarchy_level': 0, 'loss_weights': None,
                'set_min_label_to_zero': True}},
            'api_parser': None, 'num_epochs_train': 1000, 'patience': 9, 'save_interval': 2,
            'check_untrained_accuracy': True, 'skip_eval_if_already_done': True,
            'skip_ensemble_eval_if_already_done': True, 'log_data_to_tensorboard': True, 'save_lists_in_db': False,
            'save_figures_on_tensorboard': False, 'override_required_compatible_factories': False},
        'eval': {
            'tester': {'GlobalEmbeddingSpaceTester': {
                'reference_set': 'compared_to_self', 'normalize_embeddings': True, 'use_trunk_output': False,
                'batch_size': 32, 'dataloader_num_workers': 2, 'pca': None, 'label_hierarchy_level': 0,
                'visualizer': {}, 'accuracy_calculator': {'AccuracyCalculator': None}}},
            'aggregator': {'MeanAggregator': {'split_to_aggregate': 'val'}},
            'ensemble': {'ConcatenateEmbeddings': {'normalize_embeddings': True, 'use_trunk_output': False}},
            'hook_container': {'HookContainer': {'primary_metric': 'mean_average_precision_at_r',
                                                 'validation_split_name': 'val', 'save_models': True}}},
        'factories': {'factories': {'split_manager': {'SplitManagerFactory': {}}}},
        'foldernames': {'folder_names': {'models': 'saved_models'}}}


def changes(config, date):
    """The options, by their place, in which a file of the program differs from its default: {file: {place: value}}."""
    method = {'daml': 'DeepAdversarialMetricLearning', 'classifier': 'TrainWithClassifier',
              'cascade': 'CascadedEmbeddings'}.get(config)
    losses = {
        'contrastive': {'loss_funcs.metric_loss': {'ContrastiveLoss': {'pos_margin': 0.1, 'neg_margin': 0.9}},
                        'mining_funcs': {}, 'sampler.MPerClassSampler.m': 4},
        'softmax': {'loss_funcs.metric_loss': {'NormalizedSoftmaxLoss': {
            'embedding_size': 512 if date == DATES[0] else 128, 'num_classes': 100, 'temperature': 0.2}},
            'mining_funcs': {}, 'sampler.MPerClassSampler.m': 1},
        'daml': {'loss_funcs.synth_loss': TRIPLET, 'loss_funcs.g_adv_loss': TRIPLET,
                 'loss_weights': {'metric_loss': 1, 'synth_loss': 0.2, 'g_adv_loss': 0.4, 'g_hard_loss': 0.1,
                                  'g_reg_loss': 0.3}},
        'classifier': {'loss_funcs.classifier_loss': {'CrossEntropyLoss': None},
                       'loss_weights': {'metric_loss': 0, 'classifier_loss': 1}},
        'cascade': {'loss_funcs': {f'metric_loss_{k}': loss(date) for k in range(3)},
                    'mining_funcs': {f'tuple_miner_{k}': MINER for k in range(3 if date < '2020-05' else 0)}},
    }.get(config, {})
    if date == DATES[4] and 'loss_weights' in losses:
        weights = {f'trainer.{method}.loss_weights': losses.pop('loss_weights')}
    else:
        weights = {}
    general = {'daml': {'g_alone_epochs': 0, 'metric_alone_epochs': 0, 'g_triplets_per_anchor': 100},
               'old_approach': {'special_split_scheme_name': 'old_approach'}}.get(config, {})
    if method and date == DATES[4]:
        own = newest()['general']['trainer']['MetricLossOnly'] | general
        general = {'trainer': {method: own}}
    elif method:
        general['training_method'] = method
    own = {'Adam': {'lr': 1e-4, 'weight_decay': 1e-5}}
    optimizers = {
        'softmax': {'metric_loss_optimizer': {'RMSprop': {'lr': 0.004, 'momentum': 0.9, 'weight_decay': 1e-4}}},
        'daml': {'generator_optimizer': own}, 'classifier': {'classifier_optimizer': own}}.get(config, {})
    wide = {'batch_size': 128, 'freeze_batchnorm': False, 'models.embedder.MLP.layer_sizes': [512]}
    models = {
        'googlenet': wide | {'models.trunk': {'googlenet': {'pretrained': True, 'aux_logits': False,
                                                            'transform_input': False}}},
        'resnet50': wide | {'models.trunk': {'resnet50': {'pretrained': True}}},
        'unsupervised': wide | {'models.trunk': {'bninception': {'pretrained': None}}},
        'classifier': {'models.classifier': {'MLP': {'layer_sizes': []}}},
        'cascade': {'batch_size': 80, 'models.trunk': {'inception_v3': {'pretrained': True}},
                    'layers_to_extract': ['Mixed_5d', 'Mixed_6e', 'fc']}}.get(config, {})
    if date == DATES[4]:                                         # these two are options of the trainer
        moved = {'batch_size': 'batch_size', 'freeze_batchnorm': 'freeze_trunk_batchnorm'}
        weights |= {f'trainer.{method or "MetricLossOnly"}.{moved[name]}': models.pop(name)
                    for name in moved if name in models}
    colours = {'brightness': 0.5, 'contrast': 0.5, 'saturation': 0.5, 'hue': 0.5}
    augmentation = CROP | {'ColorJitter': colours, 'RandomGrayscale': {}}
    flip = {'RandomHorizontalFlip': {'p': 0.5}}
    transforms = {
        '224_random_crop': {
            'train': {'Resize': {'size': '256 256'}, 'RandomCrop': {'size': 224}} | flip,
            'eval': {'Resize': {'size': '256 256'}, 'CenterCrop': {'size': 224}}},
        '299_random_resize': {
            'train.Resize.size': 337, 'train.RandomResizedCrop.size': 299, 'eval.Resize.size': 337,
            'eval.CenterCrop.size': 299},
        'unsupervised': {'train': ABSENT} | {f'augmentation{n}': augmentation for n in (1, 2, 3)}}.get(config, {})
    return {'loss_and_miners': losses, 'general': general | weights, 'models': models,
            'optimizers': {f'optimizers.{name}': value for name, value in optimizers.items()},
            'transforms': {f'transforms.{name}': value for name, value in transforms.items()}}


CONFIGS = ('default', 'contrastive', 'softmax', 'daml', 'classifier', 'cascade', 'unsupervised', 'googlenet',
           'resnet50', '224_random_crop', '299_random_resize', 'old_approach')


def options_of(date, config='default'):
    """{file: options} of an experiment with one of the CONFIGS."""
    files = default(date)
    for file, places in changes(config, date).items():
        for place, value in places.items():
            change(files[file], place.split('.'), copy.deepcopy(value))
    return files


def change(options, place, value):
    """Sets the value at a place, a list of names, or removes it if it is ABSENT."""
    *outer, last = place
    for name in outer:
        options = options[name]
    if value is ABSENT:
        del options[last]
    else:
        options[last] = value


def write(folder, files, resumed=None):
    """
    The folder of an experiment. files: {file: options}. resumed: {epochs: files} of the options with which it was
    resumed, as in {'50_30': {'general': {'num_epochs_train': 100}}}.
    """
    for name, changed in {None: files, **(resumed or {})}.items():
        configs = folder / 'configs' / (f'resume_training_config_diffs_{name}' if name else '')
        configs.mkdir(parents=True, exist_ok=True)
        for file, options in changed.items():
            (configs / f'config_{file}.yaml').write_text(yaml.dump(options, default_flow_style=False))
    return folder
