"""Any network of timm by name, as in --arch timm:vit_small_patch16_224_normalize."""
from architectures.embedding_network import Backbone
from utilities.errors import UserError

NAMES = 'timm.list_models()'


def library():
    try:
        import timm
    except ImportError as error:
        raise UserError(f'--arch: timm:NAME needs timm ({error}): pip install timm') from None
    return timm


def names():
    """Names of the networks, then names with a set of weights, as in resnet50.a1_in1k."""
    timm = library()
    return timm.list_models() + timm.list_models(include_tags=True)


def maps(network, images):
    """The last maps [B, C, H, W], or the tokens [B, T, C] behind the network's last norm."""
    found = network.forward_features(images)
    if getattr(network, 'output_fmt', None) == 'NHWC':
        return found.permute(0, 3, 1, 2)
    # some ViTs that pool by a mean have their last norm after the pooling
    return network.fc_norm(found) if getattr(network, 'fc_norm', None) else found


def backbone(opt, name):
    """`name` without its classifier, with timm's own pooling."""
    timm = library()
    fixed_size = timm.get_pretrained_cfg(name).fixed_input_size
    arguments = {'img_size': opt.input_size} if opt.input_size and fixed_size else {}
    network = timm.create_model(name, pretrained=False, num_classes=0, **arguments)
    config = timm.data.resolve_model_data_config(network)

    def download():
        return timm.create_model(name, pretrained=True, num_classes=0, **arguments).state_dict()

    head = network.pretrained_cfg['classifier'] or ()
    return Backbone(network, opt.input_size or config['input_size'][1], tuple(config['mean']), tuple(config['std']),
                    head=tuple(f'{name}.' for name in ([head] if isinstance(head, str) else head)), download=download,
                    maps=maps, n_prefix=getattr(network, 'num_prefix_tokens', None) or 0)
