"""The losses, miners and sampler of an experiment of powerful-benchmarker as flags, by its training method."""
from dataclasses import dataclass, field

import architectures
import configuration
from architectures import depth
from utilities import libraries

# options that the supplement of the paper tells its readers to delete, by loss
OBSOLETE = {'ContrastiveLoss': ('avg_non_zero_only', 'use_similarity'), 'TripletMarginLoss': ('avg_non_zero_only',),
            'SignalToNoiseRatioContrastiveLoss': ('avg_non_zero_only',)}
# regularisers that were in a loss itself: {loss: (their weight then, its factor now, its argument now, their class)};
# the library divides the centres' distances by twice as much since June 2020
REGULARISERS = {'SignalToNoiseRatioContrastiveLoss': ('regularizer_weight', 1, 'embedding', 'ZeroMeanRegularizer'),
                'SoftTripleLoss': ('reg_weight', 2, 'weight', 'SparseCentersRegularizer')}


@dataclass
class Part:
    """A loss of a sum, and its miner."""
    loss: str
    weight: float = 1
    arguments: dict = field(default_factory=dict)
    miner: str = 'none'
    miner_arguments: dict = field(default_factory=dict)


def translate(options, settings, notes):
    """The training method with its losses; of a method without counterpart, the loss metric_loss."""
    method = options.class_of('training_method')
    if method in METHODS and METHODS[method](options, settings, notes):
        options.arguments('training_method')
    else:
        set_sum(settings, library_losses(options, settings, notes, ['metric_loss']))
    if 'arch' in settings and normalises(settings):
        settings['arch'] += '_normalize'
    sampler(options, settings)


def normalises(settings):
    """
    Whether the network normalises its embeddings. The library's losses do so themselves; our triplet loss and the
    choice of hard pairs in a cascade do not. A classifier takes embeddings that are not normalised, and the levels of a
    cascade are normalised together, in evaluation.
    """
    if 'linear_classifier' in settings.get('loss', ''):
        return False
    if settings.get('daml') or min(settings.get('cascade_fractions', ()), default=1) < 1:
        return True
    return 'cascade' not in settings and settings.get('eval_normalize', True)


def sampler(options, settings):
    if options.values.get('sampler') in (None, {}):
        options.values.pop('sampler', None)
        settings['data_sampler'] = 'image_random'
    elif options.class_of('sampler') == 'MPerClassSampler':
        arguments = options.arguments('sampler')
        settings['data_sampler'] = 'class_random'
        arguments.take('length_before_new_iter')                               # --iterations_per_epoch takes its place
        n_images = arguments.take('m')
        if n_images is None:
            arguments.absent.append('sampler.MPerClassSampler.m')
        else:
            settings['samples_per_class'] = n_images


# Each function of METHODS returns whether the options of its method have counterparts

def metric_losses(options, settings, notes):
    """MetricLossOnly: the loss metric_loss, and further ones."""
    set_sum(settings, library_losses(options, settings, notes, [*options.group('loss_funcs').values]))
    return True


def with_classifier(options, settings, notes):
    """TrainWithClassifier: metric_loss and the cross entropy of a linear layer on the embedding."""
    losses = options.group('loss_funcs')
    models = options.group('models')
    if losses.class_of('classifier_loss') != 'CrossEntropyLoss' or models.class_of('classifier') != 'MLP':
        return False
    losses.arguments('classifier_loss')
    layers = models.arguments('classifier')
    if not layers.values.get('layer_sizes'):
        layers.take('layer_sizes')
    set_sum(settings, [*library_losses(options, settings, notes, ['metric_loss']),
                       Part('linear_classifier', weight_of(options, 'classifier_loss'))])
    return True


def adversarial(options, settings, notes):
    """DeepAdversarialMetricLearning: metric_loss, and --daml around a triplet loss of the synthetic negatives only."""
    losses = options.group('loss_funcs')
    names = ('synth_loss', 'g_adv_loss')
    weight = options.group('loss_weights').values.get('g_hard_loss')
    weight = 1 if weight is None else weight
    if {losses.class_of(name) for name in names} != {'TripletMarginLoss'} or weight <= 0 or 'arch' not in settings:
        return False
    margin, margin_of_generator = (losses.arguments(name).take('margin', 0.05) for name in names)
    parts = [*library_losses(options, settings, notes, ['metric_loss']),
             Part('triplet', weight_of(options, 'g_hard_loss'), miner='random')]
    for flag, name in (('', 'synth_loss'), ('reg_', 'g_reg_loss'), ('adv_', 'g_adv_loss')):
        settings[f'daml_{flag}weight'] = float(f'{weight_of(options, name) / weight:.12g}')
    settings |= {'daml': True, 'daml_real_weight': 0, 'daml_margin': margin_of_generator,
                 'daml_layers': [backbone(settings['arch']).n_features],
                 'loss_triplet_margin': margin, 'loss_triplet_power': 1, 'loss_triplet_active_only': True}
    options.take('g_triplets_per_anchor')
    notes.append('--daml differs from DeepAdversarialMetricLearning: it takes one random triplet per sample instead of '
                 'g_triplets_per_anchor; the terms of the generator have squared distances of features and embeddings '
                 'instead of mean squares of normalised features and plain distances; and these terms train only the '
                 'generator, and the loss of the synthetic negatives everything else, where there both train all')
    set_sum(settings, parts)
    return True


def cascaded(options, settings, notes):
    """CascadedEmbeddings: metric_loss_0, _1, ... as one loss with --cascade, if they are equal."""
    losses = options.group('loss_funcs')
    weights = options.group('loss_weights')
    layers = options.values.get('layers_to_extract') or []
    names = [f'metric_loss_{level}' for level in range(len(layers))]
    kind = losses.class_of('metric_loss_0')
    blocks = blocks_of(settings.get('arch'), layers)
    first = losses.values.get('metric_loss_0')
    weight = weights.values.get('metric_loss_0')
    are_equal = all(losses.values.get(name) == first and weights.values.get(name) == weight for name in names)
    if kind not in classes('losses') or not are_equal or blocks is None or 'embed_dim' not in settings:
        return False
    options.take('layers_to_extract')
    miner, given = mined_levels(options.group('mining_funcs'), settings, len(layers), notes)
    for name in names:                                       # the losses of all levels are equal: one stands for all
        arguments = loss_arguments(kind, losses.arguments(name), settings, notes)
        weight = weight_of(options, name)
    settings |= {'cascade': blocks, 'embed_dim': settings['embed_dim'] * len(layers)}
    set_sum(settings, [Part(f'pml:{kind}', weight, arguments, miner, given)])
    return True


def mined_levels(miners, settings, n_levels, notes):
    """
    (--batch_mining, its arguments) of a cascade; sets --cascade_fractions. An HDCMiner keeps a fraction of the pairs of
    the level before it. Instead of other miners of further levels, the miner of the first level selects.
    """
    first = miners.values.get('tuple_miner_0')
    fraction = 1.0
    fractions = []
    miner, given = tuple_miner(miners, ['tuple_miner_0'], without='all')
    for name in [f'tuple_miner_{level}' for level in range(1, n_levels)]:
        if miners.class_of(name) == 'HDCMiner':
            fraction *= miners.arguments(name).take('filter_percentage', 0.5)
        elif first is not None and miners.values.get(name) == first:
            miners.values.pop(name)
            notes.append('--cascade uses the tuples of the first level at all levels; CascadedEmbeddings has a miner '
                         'for each level')
        fractions.append(fraction)
    settings['cascade_fractions'] = fractions
    return miner, given


def backbone(arch):
    """The Backbone of --arch, without its weights."""
    return architectures.select_backbone(configuration.parse(['--arch', arch]))


def blocks_of(arch, layers):
    """
    The numbers of the blocks, as in --cascade, whose outputs are the given layers without the last one, which must be
    the classifier. None for other layers.
    """
    if arch is None or not layers or layers[-1] not in ('fc', 'last_linear'):
        return None
    ends = [names[-1] for names in depth.blocks(backbone(arch).network)]
    return [ends.index(layer) for layer in layers[:-1]] if {*layers[:-1]} <= {*ends} else None


def library_losses(options, settings, notes, names):
    """The losses of these names as Parts: classes of pytorch-metric-learning, all with the miner of tuples."""
    losses = options.group('loss_funcs')
    parts = []
    miner, given = tuple_miner(options.group('mining_funcs'))
    for name in names:
        kind = losses.class_of(name)
        if kind in classes('losses'):
            arguments = loss_arguments(kind, losses.arguments(name), settings, notes)
            parts.append(Part(f'pml:{kind}', weight_of(options, name), arguments, miner, given))
    return parts


def classes(module):
    return libraries.classes(module, 'an experiment of powerful-benchmarker')


def tuple_miner(miners, names=('tuple_miner', 'post_gradient_miner'), without='none'):
    """(--batch_mining, its arguments) for the first of the names that has a miner; (without, {}) where none has."""
    for name in names:
        kind = miners.class_of(name)
        if kind in classes('miners'):
            return f'pml:{kind}', known_arguments(miners.arguments(name), classes('miners')[kind])
    return without, {}


def loss_arguments(kind, given, settings, notes):
    """The arguments of a loss in an experiment as arguments of the present class of the library."""
    if kind == 'ContrastiveLoss' and given.values.get('use_similarity'):
        given.take('use_similarity')
        given.put('distance', {'CosineSimilarity': {}}, 'use_similarity')
    if 'embedding_size' in given and given.values.get('embedding_size') == settings.get('embed_dim'):
        given.take('embedding_size')                                           # the run gives it
    for argument in OBSOLETE.get(kind, ()):
        if given.take(argument) is not None:
            notes.append(f'{argument} of {kind} is dropped, as the supplement of the paper says')
    if kind in REGULARISERS:
        name, factor, of, regulariser = REGULARISERS[kind]
        weight = given.take(name)
        n_centres = given.values.get('centers_per_class')
        if weight and n_centres != 1:
            arguments = {} if n_centres is None else {'centers_per_class': n_centres}
            given.put(f'{of}_regularizer', {regulariser: arguments}, name)
            given.put(f'{of}_reg_weight', factor * weight, name)
    return known_arguments(given, classes('losses')[kind])


def known_arguments(given, found):
    """The arguments of a class of the library, taken out as far as its present version knows them."""
    return {name: given.take(name) for name in [*given.values] if name in libraries.accepted(found)}


def weight_of(options, name):
    return options.group('loss_weights').take(name, 1)


def set_sum(settings, parts):
    """Sets the flags of a sum of losses, each with its miner; one miner for all is given once."""
    if not parts:
        return
    settings['loss'] = '+'.join(part.loss for part in parts)
    if any(part.weight != 1 for part in parts):
        settings['loss_weights'] = [part.weight for part in parts]
    given = [part.arguments for part in parts if part.loss.startswith('pml:')]
    settings |= {'loss_pml_args': given} if any(given) else {}
    mined = parts if len({part.miner for part in parts}) > 1 else parts[:1]
    settings['batch_mining'] = '+'.join(part.miner for part in mined)
    given = [part.miner_arguments for part in mined if part.miner.startswith('pml:')]
    settings |= {'miner_pml_args': given} if any(given) else {}


METHODS = {'MetricLossOnly': metric_losses, 'TrainWithClassifier': with_classifier,
           'DeepAdversarialMetricLearning': adversarial, 'CascadedEmbeddings': cascaded}
