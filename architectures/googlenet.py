"""GoogLeNet, torchvision's variant with BatchNorm. Szegedy et al., CVPR 2015."""
import torchvision

from architectures.embedding_network import Backbone
from architectures.torchvision_models import Download, remove_last_linear


def backbone(opt):
    """Without auxiliary classifiers. The ImageNet weights come from TensorFlow and expect inputs in [-1, 1]."""
    network = torchvision.models.googlenet(weights=None, aux_logits=False, init_weights=opt.not_pretrained)
    network.dropout.p = 0.0
    head = remove_last_linear(network)
    return Backbone(network, opt.input_size or 227, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5),
                    head=(f'{head}.', 'aux1.', 'aux2.'),
                    download=Download(torchvision.models.GoogLeNet_Weights.IMAGENET1K_V1))
