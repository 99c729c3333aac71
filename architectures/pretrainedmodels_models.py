"""Any network of Cadene's pretrainedmodels by name, as in --arch pretrainedmodels:xception_normalize."""
import torch

from architectures.embedding_network import Backbone, remove_classifier
from utilities.errors import UserError

NAMES = 'pretrainedmodels.model_names'
# Weight files of networks from torchvision have torchvision's names; the library renames them after loading.
HEADS = ('last_linear.', 'last_conv.', 'classifier.', 'fc.', 'AuxLogits.')
ALEXNET = {'features.': '_features.', 'classifier.1.': 'linear0.', 'classifier.4.': 'linear1.'}
VGG = {'features.': '_features.', 'classifier.0.': 'linear0.', 'classifier.3.': 'linear1.'}


def library():
    try:
        import pretrainedmodels
    except ImportError as error:
        raise UserError(f'--arch: bninception and pretrainedmodels:NAME need pretrainedmodels ({error}): '
                        'pip install pretrainedmodels six') from None
    return pretrainedmodels


def names():
    return list(library().pretrained_settings)


def maps(network, images):
    """The last maps, after a ReLU, which DenseNet, Xception and NASNet lack; it changes no other network's maps."""
    return torch.relu(network.features(images))


def contiguous(module, inputs, maps):
    """A forward hook: the maps as the library's view() needs them; other layouts only suit maps of one pixel."""
    return maps.contiguous()


def contiguous_if_large(module, inputs, maps):
    """A forward hook of a DenseNet: its maps, contiguous where the library averages over more than 7 x 7 pixels."""
    return maps.contiguous() if max(maps.shape[2:]) > 7 else maps


def prepare_flattening(network, name):
    """
    Lets the network flatten maps of several pixels that are in channels_last, the layout on the CPU. The maps that
    AlexNet and VGG flatten have several pixels at every size of images, those of others at large sizes.
    """
    if name.startswith(('alexnet', 'vgg')):
        network._features.register_forward_hook(contiguous)
    if name.startswith('densenet'):
        network.features.register_forward_hook(contiguous_if_large)
    for module in network.modules():
        if isinstance(module, torch.nn.AvgPool2d) and module.kernel_size not in (1, 2, 3):       # the last pooling
            module.register_forward_hook(contiguous)


def backbone(opt, name, size=None):
    """`name` without its classifier; size: side of the input images, if it is not the library's own."""
    settings = next(iter(library().pretrained_settings[name].values()))      # the first of several is ImageNet's
    network = getattr(library(), name)(num_classes=settings['num_classes'], pretrained=None)
    remove_classifier(network, f'pretrainedmodels:{name}')
    prepare_flattening(network, name)
    if getattr(network, 'aux_logits', False):
        network.aux_logits = False                                # it would give a second output while training
        network.AuxLogits = None
    renamed = {}
    if name == 'alexnet':
        renamed = ALEXNET
    elif name.startswith('vgg'):
        renamed = VGG
    top = settings['input_range'][1]
    return Backbone(network, opt.input_size or size or settings['input_size'][1],
                    tuple(value / top for value in settings['mean']), tuple(value / top for value in settings['std']),
                    bgr=settings['input_space'] == 'BGR', head=HEADS, renamed=renamed,
                    url=settings['url'], maps=maps)
