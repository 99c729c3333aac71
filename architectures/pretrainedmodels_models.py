"""Any network of Cadene's pretrainedmodels by name, for example --arch pretrainedmodels:xception_normalize."""
import torch

from architectures.embedding_network import Backbone
from utilities.errors import UserError


class Download:
    """() -> the state dict at `url`, checked against the hash in its name."""

    def __init__(self, url):
        self.url = url

    def __call__(self):
        return torch.hub.load_state_dict_from_url(self.url, map_location='cpu', check_hash=True, weights_only=True)


def backbone(opt, name, size=None):
    """The network `name` without its last linear layer; size: input size in pixels, if not the library's default."""
    try:
        import pretrainedmodels
    except ImportError as error:
        raise UserError(f'--arch {name} needs pretrainedmodels ({error}): pip install pretrainedmodels six') from None
    if name not in pretrainedmodels.pretrained_settings or 'imagenet' not in pretrainedmodels.pretrained_settings[name]:
        raise UserError(f'--arch pretrainedmodels:{name}: unknown; pretrainedmodels.model_names lists the names')
    settings = pretrainedmodels.pretrained_settings[name]['imagenet']
    network = getattr(pretrainedmodels, name)(num_classes=settings['num_classes'], pretrained=None)
    network.last_linear = torch.nn.Identity()
    top = settings['input_range'][1]
    return Backbone(network, opt.input_size or size or settings['input_size'][1],
                    tuple(value / top for value in settings['mean']), tuple(value / top for value in settings['std']),
                    bgr=settings['input_space'] == 'BGR', head=('last_linear.',), download=Download(settings['url']))
