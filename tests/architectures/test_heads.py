"""Pooling and the embedding layer: norms, biases, and initial weights."""
import functools

import numpy as np
import pytest
import timm
import torch
from sklearn.decomposition import PCA

import architectures
import criteria
import optimization
from architectures import embedding_layer, pooling
from tests.helpers import after_training, assert_same_end, folder_of, rows_of
from tests.helpers import random_network as select
from utilities.errors import UserError


def narrow(monkeypatch, **sizes):
    """timm builds smaller networks under their names."""
    monkeypatch.setattr(timm, 'create_model', functools.partial(timm.create_model, **sizes))


# Pooling

@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('arch, size', [
    ('resnet50', 64), ('mobilenet_v2', 64), ('googlenet', 64), ('bninception', None), ('torchvision:densenet121', 64),
    ('torchvision:swin_t', 64), ('torchvision:squeezenet1_1', 64), ('timm:resnet18', 64),
    ('timm:swin_tiny_patch4_window7_224', None), ('pretrainedmodels:xception', 96),
    ('pretrainedmodels:squeezenet1_1', 64)])
def test_the_mean_of_the_maps_is_the_networks_own_pooling(arch, size, opt, monkeypatch):
    if 'swin_tiny' in arch:
        narrow(monkeypatch, depths=(1, 1, 1, 1), embed_dim=12, num_heads=(1, 1, 1, 1))
    model = select(opt, arch, embed_dim=2, pool='avg', input_size=size).eval()
    images = torch.rand(2, 3, model.input_size, model.input_size)
    with torch.no_grad():
        features = model(images)[1]
        model.pool = None
        torch.testing.assert_close(features, model(images)[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('pool', [*pooling.OF_MAPS])
def test_each_pools_the_last_maps_of_conv4(pool, opt):
    model = select(opt, 'conv4', pool=pool, input_size=48, embed_dim=5)
    images = torch.rand(3, 3, 48, 48)
    embeddings, features = model(images)
    maps = model.backbone[:4]((images - .5) / .5)
    mean, largest = (torch.stack([torch.stack([function(plane) for plane in image]) for image in maps])
                     for function in (torch.mean, torch.max))
    root = torch.stack([(image.clamp(min=1e-6) ** 3).flatten(1).mean(1) ** (1 / 3) for image in maps])
    torch.testing.assert_close(features, {'avg': mean, 'max': largest, 'avg_max': mean + largest, 'gem': root}[pool])
    assert embeddings.shape == (3, 5) and model.f_embed.in_features == 64
    embeddings.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert ('pool.p' in model.state_dict()) == (pool == 'gem')


@pytest.mark.parametrize('name, n_prefix', [('vit_tiny_patch16_224', 1), ('deit_tiny_distilled_patch16_224', 2),
                                            ('vit_tiny_patch16_dinov3', 5)])
def test_tokens_of_vits(name, n_prefix, opt, monkeypatch):
    narrow(monkeypatch, depth=2, embed_dim=24, num_heads=2)
    if name not in timm.list_models():
        name, n_prefix = 'vit_small_patch14_reg4_dinov2', 5
    size = {'input_size': 56 if 'patch14' in name else 64}
    models = {}
    for pool in (None, *pooling.OF_TOKENS):
        torch.manual_seed(0)
        models[pool] = select(opt, f'timm:{name}', pool=pool, **size).eval()
    images = torch.rand(2, 3, *2 * [size['input_size']])
    with torch.no_grad():
        found = {pool: model(images)[1] for pool, model in models.items()}
        tokens = models[None].backbone.forward_features((images - models[None].mean) / models[None].std)
    assert tokens.shape[1] == n_prefix + 16
    assert torch.equal(found['token'], tokens[:, 0])
    mean = sum(tokens[:, n_prefix + i] for i in range(16)) / 16
    torch.testing.assert_close(found['patches'], mean)
    assert torch.equal(found['token_patches'], torch.cat([found['token'], found['patches']], dim=1))
    if name == 'vit_tiny_patch16_224':
        assert torch.equal(found['token'], found[None])


def test_pooled_vits_with_their_norm_behind_the_mean_have_it_before(opt):
    model = select(opt, 'timm:test_vit2', pool='patches').eval()
    assert isinstance(model.backbone.fc_norm, torch.nn.Module)
    image = torch.rand(1, 3, model.input_size, model.input_size)
    tokens = model.backbone.fc_norm(model.backbone.forward_features((image - model.mean) / model.std))
    prefix = model.backbone.num_prefix_tokens
    torch.testing.assert_close(model(image)[1], tokens[:, prefix:].mean(dim=1))


@pytest.mark.parametrize('arch, pool, sentence', [
    ('timm:vit_tiny_patch16_224', 'gem', r'gives tokens \(\[1, 197, 192\] for one image\); choose from token, patches'),
    ('conv4', 'patches', r'gives maps \(\[1, 64, 2, 2\] for one image\); choose from avg, max, avg_max, gem'),
    ('conv4', 'token', 'conv4 has no class token'),
    ('timm:vit_little_patch16_reg1_gap_256', 'token', 'has no class token'),
    ('torchvision:vit_b_32', 'avg', 'gives only pooled features; leave the flag out or'),
    ('pretrainedmodels:alexnet', 'avg', r'gives neither maps nor tokens \(\[1, 4096\] for one image\)'),
])
def test_a_pooling_that_does_not_suit_the_network_is_refused(arch, pool, sentence, opt):
    with torch.device('meta'), pytest.raises(UserError, match=f'--pool {pool}: .*{sentence}'):
        architectures.select_backbone(opt(arch=arch, not_pretrained=True, pool=pool))


def test_gem_of_small_values_in_half_precision():
    maps = torch.full((1, 2, 3, 3), 1e-3, dtype=torch.float16, requires_grad=True)
    found = pooling.Gem().half()(maps)
    found.sum().backward()
    assert found.dtype == torch.float16 and found.tolist() == [[pytest.approx(1e-3, rel=.01)] * 2]
    assert maps.grad.isfinite().all() and maps.grad.any()


def test_a_trained_pooling_learns_in_the_warmup_and_has_the_rate_of_the_head(opt):
    flags = opt(arch='conv4', not_pretrained=True, pool='gem', lr=.1, fc_lr=.2, loss='triplet', warmup=1)
    model = architectures.select(flags)
    model.start_epoch(1)
    model(torch.rand(2, 3, 32, 32))[0].sum().backward()
    assert model.pool.p.grad is not None and model.backbone[0][0].weight.grad is None
    optimizer, _ = optimization.select(flags, model, criteria.select(flags, lambda *_: None))
    group, = (group for group in optimizer.param_groups if any(p is model.pool.p for p in group['params']))
    assert group['lr'] == .2


# The embedding layer

def images(n):
    return torch.rand(n, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize('affine', [False, True])
def test_layer_norm_in_front(affine, opt):
    model = select(opt, 'conv4', embed_norm='layer', embed_norm_affine=affine, embed_dim=3).double().eval()
    embeddings, features = model(images(4))
    variance, mean = torch.var_mean(features, dim=1, correction=0, keepdim=True)
    normed = (features - mean) / (variance + 1e-5).sqrt()
    torch.testing.assert_close(embeddings, normed @ model.f_embed[1].weight.T + model.f_embed[1].bias)
    assert ('f_embed.0.weight' in model.state_dict()) == affine
    torch.testing.assert_close(model.f_embed(features), embeddings)


@pytest.mark.parametrize('affine', [False, True])
def test_batch_norm_in_front_is_trained_though_the_backbones_are_frozen(affine, opt):
    model = select(opt, 'conv4_frozen', embed_norm='batch', embed_norm_affine=affine, embed_dim=3, warmup=1).double()
    model.start_epoch(1)
    embeddings, features = model(images(6))
    variance, mean = torch.var_mean(features, dim=0, correction=0)
    normed = (features - mean) / (variance + 1e-5).sqrt()
    torch.testing.assert_close(embeddings, normed @ model.f_embed[1].weight.T + model.f_embed[1].bias)
    torch.testing.assert_close(model.f_embed[0].running_mean, .1 * mean)
    assert ('f_embed.0.weight' in model.state_dict()) == affine


@pytest.mark.parametrize('arch, norm, sentence', [
    ('conv4 --freeze backbone', 'none', None),
    ('conv4_frozen', 'batch', 'not of the whole batch of 12; --embed_norm layer does not depend on the batch'),
    ('conv4', 'batch', 'not of the whole batch of 12; --arch conv4_frozen keeps them fixed')])
def test_a_batch_norm_whose_batch_comes_in_pieces_is_noted(arch, norm, sentence, quick, run, capsys):
    assert run(*quick, '--n_epochs', '1', '--iterations_per_epoch', '1', '--evaluation_metrics', 'e_recall@1',
               '--arch', *arch.split(), '--embed_norm', norm, '--micro_bs', '6') == 0
    out = capsys.readouterr().out
    assert (sentence in out) if sentence else 'BatchNorm uses the statistics' not in out


@pytest.mark.parametrize('flags, refused', [
    ('--embed_norm batch --micro_bs 2', True), ('--embed_norm batch --micro_bs 3', False), ('--micro_bs 2', False),
    ('--embed_norm batch --micro_bs 2 --n_epochs 0', False)])
def test_a_batch_norm_over_a_single_image_is_refused_at_the_start(flags, refused, quick, run, capsys, tmp_path):
    """--micro_bs 2 makes nine pieces of 17 images, one of them of a single image, whose maps have several values."""
    code = run(*quick, '--evaluation_metrics', 'e_recall@1', '--n_epochs', '1',
               '--iterations_per_epoch', '1', '--data_sampler', 'full_random', '--bs', '17', '--loss', 'proxyanchor',
               '--batch_mining', 'none', *flags.split())
    error = capsys.readouterr().err
    assert code == (2 if refused else 0) and (tmp_path / 'runs').exists() != refused
    assert not refused or error == (
        'main.py: error: --embed_norm batch needs two images to normalise, and a piece of a batch of --bs 17 has a '
        'single one; change --bs or --micro_bs so that each piece has two\n')


def test_without_a_bias_and_orthogonal(opt):
    model = select(opt, 'conv4', embed_bias=False, embed_layers=[9], embed_dim=3)
    assert [name for name in model.state_dict() if 'f_embed' in name] == ['f_embed.0.weight', 'f_embed.2.weight']
    model = select(opt, 'conv4', embed_init='orthogonal', embed_layers=[9], embed_dim=3)
    for layer in model.f_embed[::2]:
        torch.testing.assert_close(layer.weight @ layer.weight.T, torch.eye(len(layer.weight)))
        assert not layer.bias.any()


def test_kaiming_and_identity(opt):
    layer = select(opt, 'conv4', embed_init='kaiming', embed_dim=256).f_embed
    assert not layer.bias.any() and layer.weight.std().item() == pytest.approx((2 / 256) ** .5, rel=.02)
    layer = select(opt, 'conv4', embed_init='identity', embed_dim=100).f_embed
    assert torch.equal(layer(torch.arange(float(layer.in_features))), torch.arange(100.))


def test_evaluation_with_images_of_another_size(opt):
    assert select(opt, 'conv4', eval_size=48, pool='avg').f_embed.in_features == 64
    with pytest.raises(UserError, match='--eval_size 48: --arch conv4 has another number of features'):
        select(opt, 'conv4', eval_size=48)
    with pytest.raises(UserError, match='--eval_size 1: the network cannot process images of this size'):
        select(opt, 'conv4', eval_size=1)


# Principal components

@pytest.fixture
def data():
    """60 features of dimension 6."""
    random = np.random.default_rng(1)
    return random.normal(size=(60, 6)) @ random.normal(size=(6, 6)) + 5


def fitted(opt, data, **flags):
    """The embedding layer after a fit to the data, and its embeddings of them as an array."""
    features = torch.from_numpy(data).float()
    flags = opt(**flags)
    layer = embedding_layer.embedding_layer(flags, features.shape[1], flags.embed_dim)
    embedding_layer.fit(flags, layer, features)
    return layer, layer.eval()(features).detach().double().numpy()


def assert_equal_up_to_signs(found, expected, atol=1e-3):
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=atol)


def test_pca_is_that_of_scikit_learn(opt, data):
    layer, embeddings = fitted(opt, data, embed_init='pca', embed_dim=6)
    assert_equal_up_to_signs(embeddings, PCA(6).fit_transform(data))
    assert (layer.weight.detach().gather(1, layer.weight.abs().argmax(1, keepdim=True)) > 0).all()
    _, first = fitted(opt, data, embed_init='pca', embed_dim=2, embed_bias=False)
    assert_equal_up_to_signs(first, data @ PCA(2).fit(data).components_.T)


def test_a_norm_in_front_of_a_fit_has_the_statistics_of_the_features(opt, data):
    layer, embeddings = fitted(opt, data, embed_init='pca', embed_dim=3, embed_norm='batch')
    scale = np.sqrt(data.var(axis=0, ddof=1) + 1e-5)
    assert_equal_up_to_signs(embeddings, PCA(3).fit_transform((data - data.mean(axis=0)) / scale))
    np.testing.assert_allclose(layer[0].running_mean, data.mean(axis=0), rtol=1e-4)


def test_fits_that_cannot_be_are_refused(opt, data, run, quick, capsys):
    with pytest.raises(UserError, match='has 6 features, .*; set --embed_dim 6 or less, not 7'):
        fitted(opt, data, embed_init='pca', embed_dim=7)
    assert run(*quick, '--embed_init', 'pca', '--embed_layers', '8') == 2
    assert '--embed_init pca fits a single linear layer; leave --embed_layers out' in capsys.readouterr().err


def test_the_baseline_of_principal_components(quick, run, tmp_path):
    """Without an epoch, the embeddings are the principal components of the features; trained further, it resumes."""
    flags = [*quick, '--arch', 'conv4', '--embed_init', 'pca', '--no_train_metrics', 'false']
    assert run(*flags, '--n_epochs', '0') == 0
    folder = folder_of(tmp_path)
    assert after_training(folder, 'embeddings', tmp_path / 'embeddings.npz') == 0
    assert after_training(folder, 'embeddings', tmp_path / 'features.npz', '--eval_features') == 0
    embeddings, features = (np.load(tmp_path / f'{name}.npz') for name in ('embeddings', 'features'))
    rows = features['embeddings'].astype(float)
    expected = PCA(5).fit(rows[features['splits'] == 'train']).transform(rows)
    assert_equal_up_to_signs(embeddings['embeddings'][:, :5], expected)
    assert len(rows_of(folder)) == 1
    assert run('--resume', folder, '--n_epochs', '2') == 0
    assert run(*flags, '--group', 'whole') == 0
    assert_same_end(folder_of(tmp_path, 'whole_s1'), folder)
