"""
Every network of the three libraries gives pooled features without its classifier, in both modes, and takes the weights.

Networks are built on torch's meta device, which has shapes and no numbers. By default, larger ones of the same code
are left out; of torchvision and pretrainedmodels there is one per family, and of timm one per kind of classifier.
ALL_NETWORKS=1 tests all 1,494, in about half an hour.
"""
import os
import re

import pytest
import timm
import torch
import torchvision

import architectures
import parts
from architectures import pretrainedmodels_models, torchvision_models, weights
from utilities.errors import UserError

ALL = bool(os.environ.get('ALL_NETWORKS'))
# These read numbers while they are built, which the meta device does not have; or have recurrent layers, slow on it.
ON_THE_CPU = re.compile('regnet_|resnext101_.*4d|sequencer2d_s')
# By default left out: deeper or wider networks of the same code, and large ones on the CPU.
LARGER = re.compile(r'101|107|131|152|154|161|169|201|92|98|efficientnet_(b[2-7]|v2)|convnext_[sbl]|swin_(v2|[sb]$)|'
                    r'vit_[lh]|vit_b_16|wide|inceptionresnet|^p?nasnet|polynet|regnet_(y|.*[0-9]gf)|resnext50')
UNPOOLED = {'deepseek_vit_412m_enc', 'gemma4_vit_167m_enc', 'gemma4_vit_570m_enc', 'mobilenetv5_300m_enc',
            'qwen3_vit_88m_enc', 'qwen3_vit_306m_enc', 'qwen3_vit_416m_enc'}
MISNAMED = {'vitamin_xlarge_336'}            # timm 1.0.31 builds vitamin_xlarge_256 under this name


@pytest.fixture(autouse=True)
def elementwise_on_meta(monkeypatch):
    """Functions that torch computes on the meta device by slow Python: their result has the shape of their input."""
    def quick(function):
        return lambda images, *more, **flags: (
            torch.empty_like(images) if images.is_meta else function(images, *more, **flags))

    for module, name in ((torch, 'batch_norm'), (torch.nn.functional, 'gelu'), (torch.Tensor, 'clamp_')):
        monkeypatch.setattr(module, name, quick(getattr(module, name)))
    layer_norm = torch.layer_norm
    monkeypatch.setattr(torch, 'layer_norm', lambda images, shape, *more: (
        torch.empty_like(images) if images.is_meta and images.shape[-len(shape):] == tuple(shape)
        else layer_norm(images, shape, *more)))


def of(names, file_of):
    """All names, or one per file of the library and first letters of the name."""
    if ALL:
        return names()
    smaller = [name for name in reversed(names()) if not LARGER.search(name)]
    return list({(file_of(name), re.match('[a-z_]+', name)[0]): name for name in smaller}.values())


def of_timm():
    """All names, or one per kind of classifier, a small network where its name says so."""
    names = [name for name in timm.list_models() if name not in UNPOOLED | MISNAMED]
    if ALL:
        return names
    names.sort(key=lambda name: not re.search('test|atto|femto|pico|nano|tiny|mobile|small|_s(_|$)', name))
    kinds = {}
    for name in names:
        config = timm.get_pretrained_cfg(name)
        kinds.setdefault((isinstance(config.classifier, str), config.pool_size is None, config.fixed_input_size), name)
    return sorted(kinds.values())


def device_of(name):
    return torch.device('cpu' if ON_THE_CPU.search(name) else 'meta')


def backbone_of(arch, opt):
    return architectures.select_backbone(opt(arch=arch, not_pretrained=True))


def assert_without_classifier(backbone, n_features):
    assert backbone.n_features == n_features
    with torch.no_grad():
        features = backbone.network.train()(torch.zeros(2, 3, backbone.size, backbone.size))
    assert features.flatten(1).shape == (2, n_features)


def width_before_classifier(state):
    return [value for value in state.values() if value.ndim > 1 and len(value) == 1000][-1].shape[1]


def assert_no_logits(network):
    assert not any(1000 in (getattr(module, 'out_features', 0), getattr(module, 'out_channels', 0))
                   for module in network.modules())


def assert_takes(state, backbone, opt):
    backbone.download = lambda: state
    weights.load(opt(), 'it', backbone)


@pytest.mark.filterwarnings('ignore')                                    # on initialisation, and on copies without data
@pytest.mark.parametrize('name', of(torchvision_models.names, lambda name: (
    torchvision.models.get_model_builder(name).__module__)))
def test_torchvision(name, opt):
    with device_of(name):
        backbone = backbone_of(f'torchvision:{name}', opt)
        arguments = {'image_size': 518} if name == 'vit_h_14' else {}
        state = torchvision.models.get_model(name, weights=None, **arguments).state_dict()
        assert_without_classifier(backbone, width_before_classifier(state))
        assert_no_logits(backbone.network)
        assert_takes(state, backbone, opt)
    preset = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    assert backbone.size == preset.crop_size[0]
    if name not in ('googlenet', 'inception_v3'):
        assert (list(backbone.mean), list(backbone.std)) == (preset.mean, preset.std)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', of(pretrainedmodels_models.names, lambda name: (
    getattr(pretrainedmodels_models.library(), name).__module__)))
def test_pretrainedmodels(name, opt):
    import pretrainedmodels
    with device_of(name):
        backbone = backbone_of(f'pretrainedmodels:{name}', opt)
        network = getattr(pretrainedmodels, name)
        if network.__module__.endswith('torchvision_models'):              # their weight files have torchvision's names
            network = torchvision.models.get_model_builder({'inceptionv3': 'inception_v3'}.get(name, name))
            state = network(weights=None).state_dict()
        else:
            state = network(num_classes=1000, pretrained=None).state_dict()
        assert_without_classifier(backbone, width_before_classifier(state))
        assert_no_logits(backbone.network)
        assert_takes(state, backbone, opt)


CPU = [(name, None) for name in pretrainedmodels_models.names()]
if not ALL:
    CPU = [(name, None) for name in ('alexnet', 'squeezenet1_1')]                # VGG flattens its maps as AlexNet does


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name, size', [*CPU, ('bninception', 256)])
def test_pretrainedmodels_train_a_step_on_the_cpu(name, size, opt):
    """In the layout of images and weights there, also with images of which the library's pooling leaves some pixels."""
    flags = opt(arch=f'pretrainedmodels:{name}_normalize', not_pretrained=True, input_size=size, embed_dim=8)
    flags.device = torch.device('cpu')
    backbone = architectures.select_backbone(flags)
    model = parts.build_network(flags, backbone)
    side = backbone.size
    images = torch.rand(2, 3, side, side).contiguous(memory_format=torch.channels_last)
    weight = model.f_embed.weight
    before = weight.detach().clone()
    embeddings = model.train()(images)[0]
    assert embeddings.shape == (2, 8) and embeddings.isfinite().all()
    embeddings[0, 0].backward()
    torch.optim.SGD(model.parameters(), lr=.1).step()
    assert weight.isfinite().all() and not torch.equal(weight, before)
    assert all(value.grad.isfinite().all() for value in model.parameters() if value.grad is not None)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', of_timm())
def test_timm(name, opt):
    with device_of(name):
        backbone = backbone_of(f'timm:{name}', opt)
        assert_without_classifier(backbone, backbone.network.head_hidden_size)
    config = timm.get_pretrained_cfg(name)
    assert (backbone.size, backbone.mean, backbone.std) == (config.input_size[1], config.mean, config.std)


def test_networks_without_pooled_features_are_refused(opt):
    sentence = r'_300m_enc: its output for one image is \[1, 2048, 16, 16\]; expected pooled features \[1, F\]'
    with torch.device('meta'), pytest.raises(UserError, match=f'--arch timm:mobilenetv5{sentence}'):
        backbone_of('timm:mobilenetv5_300m_enc', opt)


def test_a_network_whose_last_layer_is_no_classifier_is_refused(opt, monkeypatch):
    monkeypatch.setattr(torchvision.models, 'get_model', lambda name, **_: torch.nn.Sequential(torch.nn.Linear(8, 7)))
    with pytest.raises(UserError, match='--arch torchvision:resnet18: its last layer, 0, has 7 outputs; expected a cl'):
        backbone_of('torchvision:resnet18', opt)


@pytest.mark.filterwarnings('ignore')
def test_googlenet_and_inception_take_what_torchvision_gives_them_with_their_weights(opt):
    images = torch.rand(2, 3, 8, 8)

    def normalised(mean, std):
        return (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)

    for name in ('googlenet', 'inception_v3'):
        preset = torchvision.models.get_model_weights(name).DEFAULT.transforms()
        with torch.device('meta'):
            backbone = backbone_of(f'torchvision:{name}', opt)
            reference = torchvision.models.get_model(name, weights=None, transform_input=True, init_weights=False)
        torch.testing.assert_close(normalised(backbone.mean, backbone.std),
                                   reference._transform_input(normalised(preset.mean, preset.std)))


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name, new, old, key', [
    ('densenet121', r'(denselayer.*(?:norm|conv))([12])', r'\1.\2', 'features.denseblock1.denselayer1.norm.1.weight'),
    ('vit_b_32', r'mlp\.0\.', 'mlp.linear_1.', 'encoder.layers.encoder_layer_0.mlp.linear_1.weight'),
])
def test_names_of_older_versions_are_understood(name, new, old, key, opt):
    """The files on torchvision's server are older than its code."""
    with torch.device('meta'):
        backbone = backbone_of(f'torchvision:{name}', opt)
        state = {re.sub(new, old, name): value for name, value in backbone.network.state_dict().items()}
        assert key in state and key not in backbone.network.state_dict()
        assert_takes(state, backbone, opt)
