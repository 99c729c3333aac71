"""Maps of what each place adds to the cosine of two images: against loops over pairs of places, and their sums."""
import argparse

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import architectures
from evaluation import pictures, why
from evaluation.embedding import Embedded
from tests.helpers import after_training, folder_of
from utilities.errors import UserError

NETWORKS = {
    'not pooled': {}, 'average': {'pool': 'avg'}, 'norm': {'pool': 'avg', 'embed_norm': 'batch'},
    'max': {'pool': 'max'}, 'gem': {'pool': 'gem'}, 'hidden layer': {'pool': 'avg', 'embed_layers': [20]},
    'layer norm': {'pool': 'avg', 'embed_norm': 'layer'}, 'features': {'pool': 'avg'},
    'patches': {'arch': 'timm:vit_tiny_patch16_224_normalize', 'input_size': 64, 'pool': 'patches'},
}


def built(opt, **flags):
    torch.manual_seed(0)
    if 'timm' in flags.get('arch', ''):
        pytest.importorskip('timm')
    flags = {'arch': 'conv4_normalize', 'not_pretrained': True, 'input_size': 48, 'embed_dim': 12, **flags}
    network = architectures.select(opt(**flags))
    for module in network.modules():                       # other statistics than those of an untrained network
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, .1)
            module.running_var.uniform_(.5, 1.5)
    return network.eval()


def images_of(network):
    return torch.rand(2, 3, *[network.input_size] * 2, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize('name', NETWORKS)
def test_the_maps_of_a_pair_sum_to_its_cosine(name, opt):
    network, of_features = built(opt, **NETWORKS[name]), name == 'features'
    why.check(opt(pictures=['why']), network)
    images = images_of(network)
    with torch.no_grad():
        unit = F.normalize(network(images)[int(of_features)], dim=1)
    cosine = float(unit[0] @ unit[1])
    for one, other in ((0, 1), (1, 0)):
        found = why.similarity_map(network, images[one], unit[other], of_features)
        assert found.shape == ((4, 4) if name == 'patches' else (3, 3))
        assert float(found.double().sum()) == pytest.approx(cosine, abs=1e-5)
        assert float(found.std()) > 0


@pytest.mark.parametrize('name', ['average', 'norm'])
def test_a_place_adds_its_products_with_all_places_of_the_other_image(name, opt):
    """Each place is embedded alone, in float64, with its part of the bias."""
    network = built(opt, **NETWORKS[name])
    images = images_of(network)
    with torch.no_grad():
        maps = why.feature_maps(network, images).double().flatten(2)                        # [2, C, P]
        unit = F.normalize(network(images)[0], dim=1)
        layer, n_places = network.f_embed.double(), maps.shape[2]
        bias = layer(torch.zeros(1, maps.shape[1], dtype=torch.float64))[0]
        places = [[(layer(maps[image, :, place][None])[0] - bias) / n_places + bias / n_places
                   for place in range(n_places)] for image in (0, 1)]
        norms = [sum(each).norm() for each in places]
        expected = [[float(sum(one @ other for other in places[1 - image]) / (norms[0] * norms[1]))
                     for one in places[image]] for image in (0, 1)]
    network.f_embed.float()
    for image in (0, 1):
        found = why.similarity_map(network, images[image], unit[1 - image])
        assert found.flatten().tolist() == pytest.approx(expected[image], abs=1e-5)


def test_networks_without_places_are_refused(opt):
    for flags, sentence in (({'pca': 4}, 'leave --pca out'),
                            ({'cascade': [2], 'embed_dim': 12}, 'leave --cascade out')):
        network = built(opt, **{name: value for name, value in flags.items() if name != 'pca'})
        with pytest.raises(UserError, match=sentence):
            why.check(opt(**flags), network)
    for flags, sentence in ((NETWORKS['patches'] | {'pool': 'token'}, 'does not pool its patch tokens alone'),
                            (NETWORKS['patches'] | {'pool': 'token_patches'}, 'does not pool its patch tokens alone'),
                            (NETWORKS['patches'] | {'pool': None}, 'does not pool its patch tokens alone')):
        with pytest.raises(UserError, match=sentence):
            why.check(opt(**flags), built(opt, **flags))
    network = built(opt)
    network.maps = lambda backbone, images: backbone[:-1](images) ** 2                     # not what it pools
    with pytest.raises(UserError, match='pools them in a way of its own'):
        why.check(opt(), network)
    network.maps = None
    with pytest.raises(UserError, match='gives only pooled features'):
        why.check(opt(), network)


def test_a_gallery_of_one_class_has_no_pairs_to_explain():
    images = argparse.Namespace(labels=np.array([0, 0, 1]), is_query=np.array([True, False, True]), in_gallery=None)
    assert pictures.why(Embedded(torch.eye(3), images), 0) is None


def test_the_pair_of_a_picture_can_be_chosen(quick, run, patterns, tmp_path, capsys):
    assert run(*quick, '--n_epochs', '0') == 0
    folder, out = folder_of(tmp_path), tmp_path / 'pair'
    one, other = (patterns / 'images' / 'class_10' / f'{number}.png' for number in (1, 4))
    assert after_training(folder, 'pictures', out, one, other, '--pictures', 'why') == 0
    assert sorted(path.name for path in out.iterdir()) == ['why_pair.png', 'why_pair.svg']
    with Image.open(out / 'why_pair.png') as picture:
        assert np.asarray(picture.convert('RGB')).std() > 10
    training = patterns / 'images' / 'class_00' / '0.png'
    capsys.readouterr()
    for more, sentence in (([one, training, '--pictures', 'why'], f'{training} is no image of the test split'),
                           ([one, '--pictures', 'why'], 'two images go with --pictures why'),
                           ([one, other, '--pictures', 'tsne'], 'two images go with --pictures why')):
        assert after_training(folder, 'pictures', out, *more) == 2
        assert sentence in capsys.readouterr().err
