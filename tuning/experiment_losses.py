"""The losses, miners and sampler of an experiment of powerful-benchmarker as flags, by its training method."""
import functools
import itertools
from dataclasses import dataclass, field

import architectures
import parameters
from architectures import depth
from tuning.experiment_folder import NUMBER, SWITCH, TEXTS, WHOLE, WHOLES

# options that the supplement of the paper tells its readers to delete, by loss
OBSOLETE = {'ContrastiveLoss': ('avg_non_zero_only',), 'TripletMarginLoss': ('avg_non_zero_only',),
            'SignalToNoiseRatioContrastiveLoss': ('avg_non_zero_only',)}
# losses that --cascade takes: {class: (flags that make the loss here equal to it, {argument: (flag, default)})}
OWN = {
    'ContrastiveLoss': ({'loss': 'contrastive', 'loss_contrastive_active_only': True},
                        {'pos_margin': ('loss_contrastive_pos_margin', 0),
                         'neg_margin': ('loss_contrastive_neg_margin', 1)}),
    'TripletMarginLoss': ({'loss': 'triplet', 'loss_triplet_power': 1, 'loss_triplet_active_only': True},
                          {'margin': ('loss_triplet_margin', 0.05)})}


@dataclass
class Part:
    """A loss of a sum, and its miner."""
    loss: str
    weight: float = 1
    arguments: dict = field(default_factory=dict)
    miner: str = 'none'
    miner_arguments: dict = field(default_factory=dict)


def translate(options, settings, notes):
    method = options.class_of('training_method')
    if method in METHODS:
        options.arguments('training_method')
    METHODS.get(method, metric_losses)(options, settings, notes)
    needs_normalised = settings.get('daml') or settings.get('cascade')
    if 'arch' in settings and (needs_normalised or settings.get('eval_normalize', True)):
        if 'linear_classifier' not in settings.get('loss', ''):
            settings['arch'] += '_normalize'
    sampler(options, settings)


def sampler(options, settings):
    name = options.class_of('sampler') if options.values.get('sampler') else None
    if name == 'MPerClassSampler':
        arguments = options.arguments('sampler')
        settings['data_sampler'] = 'class_random'
        arguments.take('length_before_new_iter', WHOLE)                        # iterations_per_epoch says it here
        n_images = arguments.take('m', WHOLE)
        if n_images is None:
            arguments.absent.append('sampler.MPerClassSampler.m')
        else:
            settings['samples_per_class'] = n_images
    elif name is None:
        options.values.pop('sampler', None)
        settings['data_sampler'] = 'image_random'


def metric_losses(options, settings, notes):
    """MetricLossOnly: the loss metric_loss, and further ones."""
    set_sum(settings, library_losses(options, notes, [*options.group('loss_funcs').values]))


def with_classifier(options, settings, notes):
    """TrainWithClassifier: metric_loss and the cross entropy of a linear layer on the embedding."""
    losses, models, parts = options.group('loss_funcs'), options.group('models'), []
    parts = library_losses(options, notes, ['metric_loss'])
    layers = models.arguments('classifier') if models.class_of('classifier') == 'MLP' else None
    if layers is not None and not layers.look('layer_sizes', WHOLES):
        layers.take('layer_sizes', WHOLES)
    if losses.class_of('classifier_loss') == 'CrossEntropyLoss':
        losses.arguments('classifier_loss')
        parts.append(Part('linear_classifier', weight_of(options, 'classifier_loss')))
    set_sum(settings, parts)


def adversarial(options, settings, notes):
    """DeepAdversarialMetricLearning: metric_loss, and --daml around a triplet loss of the synthetic negatives only."""
    losses, weights = options.group('loss_funcs'), options.group('loss_weights')
    parts = library_losses(options, notes, ['metric_loss'])
    hard = weights.look('g_hard_loss', NUMBER)
    hard = 1 if hard is None else hard
    kinds = {losses.class_of(name) for name in ('synth_loss', 'g_adv_loss')}
    if kinds == {'TripletMarginLoss'} and hard > 0 and 'arch' in settings:
        weights.take('g_hard_loss', NUMBER)
        margins = {name: losses.arguments(name).take('margin', NUMBER, 0.05) for name in ('synth_loss', 'g_adv_loss')}
        parts.append(Part('triplet', hard, miner='random'))
        for flag, name in (('', 'synth_loss'), ('reg_', 'g_reg_loss'), ('adv_', 'g_adv_loss')):
            settings[f'daml_{flag}weight'] = weight_of(options, name) / hard
        settings |= {'daml': True, 'daml_real_weight': 0, 'daml_margin': margins['g_adv_loss'],
                     'daml_layers': [backbone(settings['arch']).n_features],
                     'loss_triplet_margin': margins['synth_loss'], 'loss_triplet_power': 1,
                     'loss_triplet_active_only': True}
        options.take('g_triplets_per_anchor', WHOLE)
        notes.append('--daml is not wholly DeepAdversarialMetricLearning: here it has one random triplet per sample '
                     'instead of g_triplets_per_anchor, squared distances of features and embeddings in the terms of '
                     'the generator instead of mean squares of normalised features and plain distances, and these '
                     'terms train the generator only, the loss of the synthetic negatives everything else')
    set_sum(settings, parts)


def cascaded(options, settings, notes):
    """CascadedEmbeddings: metric_loss_0, _1, ... as one loss with --cascade, if they are equal."""
    losses, miners = options.group('loss_funcs'), options.group('mining_funcs')
    names = list(itertools.takewhile(losses.__contains__, (f'metric_loss_{k}' for k in itertools.count())))
    layers = options.look('layers_to_extract', TEXTS) or []
    kind = losses.class_of(names[0]) if names else None
    blocks, weights = blocks_of(settings.get('arch'), layers), options.group('loss_weights')
    for name in names:
        if weights.look(name, NUMBER) == 1:
            weights.take(name, NUMBER)
    if kind not in OWN or blocks is None or len(blocks) + 1 != len(names) or 'embed_dim' not in settings:
        return
    if any(losses.values[name] != losses.values[names[0]] for name in names):
        return
    options.take('layers_to_extract', TEXTS)
    flags, arguments = OWN[kind]
    settings |= flags
    for name in reversed(names):
        given = losses.arguments(name)
        settings |= {flag: given.take(argument, NUMBER, default) for argument, (flag, default) in arguments.items()}
    settings |= {'cascade': blocks, 'embed_dim': settings['embed_dim'] * len(names)}
    settings |= mined_levels(miners, len(names), notes)


def mined_levels(miners, n_levels, notes):
    """
    The flags of the miner of a cascade. An HDCMiner keeps a fraction of the pairs of the level before it; other miners
    of further levels are those of the first level here.
    """
    name = miners.class_of('tuple_miner_0')
    settings = {'batch_mining': 'all' if name is None else f'pml:{name}', 'cascade_fractions': []}
    first = miners.arguments('tuple_miner_0').rest() if name else {}
    settings |= {'miner_pml_args': [first]} if first else {}
    fraction, others = 1.0, False
    for level in range(1, n_levels):
        if miners.class_of(f'tuple_miner_{level}') == 'HDCMiner':
            fraction *= miners.arguments(f'tuple_miner_{level}').take('filter_percentage', NUMBER, 0.5)
        elif miners.class_of(f'tuple_miner_{level}') == name:
            others = others or name is not None
            given = miners.arguments(f'tuple_miner_{level}') if name else None
            if given and given.values == first:
                given.rest()
        settings['cascade_fractions'].append(fraction)
    if others:
        notes.append(f'--cascade mines tuples at the first level only, and CascadedEmbeddings at each level by its own '
                     f'{name}')
    return settings


@functools.cache
def backbone(arch):
    """The Backbone of --arch, without its weights."""
    return architectures.select_backbone(parameters.parse(['--arch', arch]))


def blocks_of(arch, layers):
    """
    The numbers of the blocks, as in --cascade, whose outputs are the given layers but the last, which must be the
    classifier. None for other layers.
    """
    if arch is None or not layers or layers[-1] not in ('fc', 'last_linear'):
        return None
    ends = [names[-1] for names in depth.blocks(backbone(arch).network)]
    return [ends.index(layer) for layer in layers[:-1]] if {*layers[:-1]} <= {*ends} else None


def library_losses(options, notes, names):
    """The losses of these names as Parts: classes of pytorch-metric-learning, all with the miner of tuples."""
    losses, (miner, given) = options.group('loss_funcs'), tuple_miner(options.group('mining_funcs'))
    return [Part(f'pml:{losses.class_of(name)}', weight_of(options, name), loss_arguments(losses, name, notes), miner,
                 given) for name in names if name in losses]


def tuple_miner(miners):
    """(--batch_mining, its arguments) for the miner of tuples."""
    for name in ('tuple_miner', 'post_gradient_miner'):
        kind = miners.class_of(name)
        if kind is not None:
            return f'pml:{kind}', miners.arguments(name).rest()
    return 'none', {}


def loss_arguments(losses, name, notes):
    """The arguments of a loss of the program's time as arguments of the library's class today."""
    kind, given = losses.class_of(name), losses.arguments(name)
    if kind == 'ContrastiveLoss' and given.take('use_similarity', SWITCH):
        given.values['distance'] = {'CosineSimilarity': {}}
    for argument in OBSOLETE.get(kind, ()):
        if given.take(argument, SWITCH) is not None:
            notes.append(f'{argument} of {kind} is dropped, as the supplement of the paper says')
    return given.rest()


def weight_of(options, name):
    return options.group('loss_weights').take(name, NUMBER, 1)


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
