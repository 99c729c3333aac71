"""Any classification network of torchvision by name, as in --arch torchvision:convnext_tiny_normalize."""
import torch

from architectures.embedding_network import Backbone, remove_classifier

NAMES = 'torchvision.models.list_models()'
AUXILIARY = ('aux1.', 'aux2.', 'AuxLogits.')        # classifiers of inner layers, which are left out


def names():
    from torchvision import models
    return models.list_models(models)


def maps(network, images):
    """The last maps: the output of the network's parts in turn, up to the pooling or the classifier."""
    for name, part in network.named_children():
        if name in ('avgpool', 'classifier', 'fc'):
            break
        images = part(images)
    return torch.relu(images) if type(network).__name__ == 'DenseNet' else images


def backbone(opt, name, weights='DEFAULT', size=None):
    """`name` without its classifier; weights: which pretrained set; size: side of the images, by default the set's."""
    from torchvision import models  # as slow to import as torch itself
    entry = getattr(models.get_model_weights(name), weights)
    preset = entry.transforms()
    arguments = {}
    input_format = {'mean': tuple(preset.mean), 'std': tuple(preset.std)}
    if name in ('googlenet', 'inception_v3'):
        # Their weights come from TensorFlow, for inputs x * 2 - 1; torchvision converts the inputs inside the network.
        arguments = {'aux_logits': False, 'init_weights': opt.not_pretrained}
        input_format = {'mean': (0.5, 0.5, 0.5), 'std': (0.5, 0.5, 0.5)}
    elif name.startswith('vit_'):
        arguments = {'image_size': preset.crop_size[0]}           # a position embedding per patch
    network = models.get_model(name, weights=None, **arguments)
    head = remove_classifier(network, f'torchvision:{name}')
    return Backbone(network, opt.input_size or size or preset.crop_size[0], **input_format,
                    head=(f'{head}.', *AUXILIARY), url=entry.url,
                    maps=None if name.startswith(('vit_', 'maxvit_')) else maps)
