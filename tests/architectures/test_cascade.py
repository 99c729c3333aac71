"""--cascade: the embeddings of several depths, and which parameters each of them depends on."""
import copy
import shlex

import pytest
import torch
import torch.nn.functional as F

import architectures
import configuration
from architectures import cascade, depth
from architectures.embedding_network import Backbone
from utilities.errors import UserError


def build(opt, arch, blocks, **flags):
    torch.manual_seed(0)
    return architectures.select(opt(arch=arch, not_pretrained=True, cascade=blocks,
                                    **{'embed_dim': 4 * (len(blocks) + 1)} | flags)).eval()


def images_of(size):
    return torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize('normalize', [True, False])
def test_the_embedding_has_that_of_each_depth_in_a_row(normalize, opt):
    model = build(opt, 'conv4_normalize' if normalize else 'conv4', [1, 2])
    images = images_of(32)
    maps, features = [(images - model.mean) / model.std], []
    for block in model.backbone[:4]:
        maps.append(block(maps[-1]))
    features = [maps[2].mean(dim=(2, 3)), maps[3].mean(dim=(2, 3)), maps[4].flatten(1)]
    levels = [layer(part) for layer, part in zip([*model.inner.layers, model.f_embed], features, strict=True)]
    levels = [F.normalize(level, dim=1) for level in levels] if normalize else levels
    embeddings, pooled = model(images)
    assert embeddings.shape == (3, 12) and torch.equal(embeddings, torch.cat(levels, dim=1))
    assert torch.equal(pooled, features[-1]) and not model.inner.features


@pytest.mark.parametrize('arch, size, block, module, width', [              # maps, tokens, maps with channels last
    ('googlenet', 64, 8, 'inception4d', 528), ('timm:vit_tiny_patch16_224', 32, 4, 'blocks.3', 192),
    ('torchvision:swin_t', 64, 4, 'features.3.0', 192)])
def test_the_mean_over_the_positions_of_a_block(arch, size, block, module, width, opt):
    if arch.startswith('timm'):
        pytest.importorskip('timm')
    model = build(opt, f'{arch}_normalize', [block], input_size=size)
    name, = model.inner.names
    assert name == module and name in depth.blocks(model.backbone)[block]
    assert model.inner.layers[0].weight.shape == (4, width)
    seen = []
    model.backbone.get_submodule(name).register_forward_hook(lambda block, inputs, output: seen.append(output))
    embeddings, _ = model(images_of(size))
    output, = seen
    channels = next(axis for axis in range(1, output.dim()) if output.shape[axis] == width)
    rows = output.movedim(channels, 1).flatten(2)
    if output.dim() == 3 and arch.startswith('timm'):
        rows = rows[:, :, 1:]                                                        # without the class token
    expected = F.normalize(model.inner.layers[0](rows.mean(dim=2)), dim=1)
    torch.testing.assert_close(embeddings[:, :4], expected, rtol=1e-4, atol=1e-5)


def test_a_level_has_a_gradient_in_the_blocks_up_to_its_own_only(opt):
    model = build(opt, 'conv4_normalize', [1, 2]).train()
    for level in range(3):
        model.zero_grad()
        model(images_of(32))[0].split(4, dim=1)[level][:, 0].sum().backward()
        moved = {name for name, parameter in model.named_parameters()
                 if parameter.grad is not None and parameter.grad.any()}
        blocks = {name.split('.')[1] for name in moved if name.startswith('backbone')}
        assert blocks == set('0123'[:level + 2])
        heads = {name.rpartition('.')[0] for name in moved if not name.startswith('backbone')}
        assert heads == {['inner.layers.0', 'inner.layers.1', 'f_embed'][level]}


def test_in_the_warm_up_only_the_embedding_layers_train(opt):
    model = build(opt, 'conv4_normalize', [1])
    model.warmup = 1
    model.start_epoch(1)
    model(images_of(32))[0][:, 0].sum().backward()
    assert {name for name, parameter in model.named_parameters()
            if parameter.grad is not None and parameter.grad.any()} == {'inner.layers.0.weight', 'inner.layers.0.bias'}


def test_a_copy_has_features_of_its_own(opt):
    """As the moving average of the weights needs it."""
    model = build(opt, 'conv4_normalize', [1])
    average = copy.deepcopy(model)
    before = model(images_of(32))[0]
    for parameter in average.parameters():
        parameter.data.mul_(1.5).add_(.01)
    other = average(images_of(32))[0]
    assert torch.equal(model(images_of(32))[0], before) and not torch.allclose(other, before)
    assert torch.equal(average(images_of(32))[0], other)


@pytest.mark.parametrize('arch, blocks, sentence', [
    ('conv4', [3], '--cascade 3: --arch conv4 has 3 blocks after the stem, and the last of them has an embedding '
                   'anyway; give numbers below 3'),
    ('bninception', [4], '--cascade: --arch bninception has no module for a block; use --arch googlenet'),
])
def test_blocks_without_an_output_are_refused(arch, blocks, sentence, opt):
    if arch != 'conv4':
        pytest.importorskip('pretrainedmodels')
    with pytest.raises(UserError, match=sentence):
        build(opt, arch, blocks)


def test_a_block_that_gives_neither_maps_nor_tokens_is_refused(opt):
    layers = torch.nn.Conv2d(3, 2, 1), torch.nn.Flatten(), torch.nn.Linear(32, 5), torch.nn.Linear(5, 5)
    with pytest.raises(UserError, match='--cascade 1: --arch conv4 gives neither maps nor tokens there; choose'):
        cascade.InnerLevels(opt(arch='conv4', cascade=[1]), Backbone(torch.nn.Sequential(*layers), 4))
    assert cascade.pooled((torch.ones(2, 3, 4, 4), torch.ones(2, 3, 4, 4)), 0) is None


@pytest.mark.parametrize('flags, sentence', [
    ('--cascade 8 5 --embed_dim 384', '--cascade 8 5: give the blocks in ascending order, each once'),
    ('--cascade 5 --embed_dim 384', r'--cascade_fractions 0.5 0.2: expected one for each block of --cascade \(1\)'),
    ('--cascade 5 8 --embed_dim 384 --cascade_fractions 0.2 0.5', 'none greater than the one before it'),
    ('--cascade 5 8', '--embed_dim 128: expected a multiple of 3, the number of embeddings with --cascade 5 8'),
    ('--daml --cascade 5 8 --embed_dim 384', '--daml does not work with --cascade: synthetic negatives have features'),
    ('--daml --embed_norm batch', '--daml does not work with --embed_norm batch'),
])
def test_flags_that_do_not_go_together_are_refused(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        configuration.parse(shlex.split(flags))
