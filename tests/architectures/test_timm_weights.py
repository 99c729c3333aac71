"""timm:hf-hub:OWNER/NAME, timm:local-dir:FOLDER, weights of another grid of patches, sizes: all without internet."""
import functools
import json
import shutil

import pytest
import torch

import architectures
import configuration
from architectures import weights
from tests.helpers import ROOT, folder_of, rows_of
from utilities.errors import UserError

timm = pytest.importorskip('timm')
RECIPES = sorted((ROOT / 'configs' / 'backbones').glob('*.yaml'))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """config.json and model.safetensors of a tiny ViT with a classifier of 10 classes, written by timm."""
    torch.manual_seed(3)
    network = timm.create_model('test_vit3', num_classes=10)
    timm.models.save_for_hf(network, tmp_path_factory.mktemp('hub') / 'tiny_ViT', safe_serialization=True)
    return next(tmp_path_factory.getbasetemp().glob('hub*/tiny_ViT'))


def state_in(folder):
    return weights.read_state_dict(folder / 'model.safetensors')[0]


def assert_loaded(model, folder):
    state = state_in(folder)
    assert {name for name in state if not name.startswith('head.')} == set(model.backbone.state_dict())
    assert all(torch.equal(value, state[name]) for name, value in model.backbone.state_dict().items())


def test_a_folder_as_the_hub_gives_it(folder, opt, tmp_path):
    assert sorted(path.name for path in folder.iterdir()) == ['config.json', 'model.safetensors']
    model = architectures.select(opt(arch=f'timm:local-dir:{folder}_normalize'))
    assert model.normalize and model.input_size == 160
    assert_loaded(model, folder)
    shutil.copy(folder / 'config.json', tmp_path)
    torch.save(state_in(folder), tmp_path / 'pytorch_model.bin')
    assert_loaded(architectures.select(opt(arch=f'timm:local-dir:{tmp_path}')), folder)


def test_a_repository_of_the_hub(folder, opt, monkeypatch):
    asked = []

    def download(repo_id, filename, **more):
        asked.append((repo_id, filename))
        return str(folder / filename)

    monkeypatch.setattr('timm.models._hub.hf_hub_download', download)
    arch = 'timm:hf-hub:BVRA/MegaDescriptor-L-384_frozen_normalize'
    assert_loaded(architectures.select(opt(arch=arch)), folder)
    assert set(asked) == {('BVRA/MegaDescriptor-L-384', 'config.json'),
                          ('BVRA/MegaDescriptor-L-384', 'model.safetensors')}

    def offline(*arguments, **more):
        raise OSError('no connection\nand more')

    monkeypatch.setattr('timm.models._hub.hf_hub_download', offline)
    with pytest.raises(UserError, match='^--arch timm:hf-hub:BVRA/.*could not be read: no connection\ndownload the '
                                        'repository .*timm:local-dir:FOLDER$'):
        architectures.select(opt(arch=arch))


@pytest.mark.parametrize('config, sentence', [
    (None, 'config.json could not be read: .*No such file.*\ngive a folder as `hf download OWNER/NAME'),
    ('{', 'config.json could not be read: Expecting'),
    ({'architectures': ['Dinov2Model']}, 'names no network of timm .*--arch timm:NAME --weights FILE'),
    ({'architecture': 'test_vit9'}, 'timm has no network test_vit9, which its config.json names'),
    ({'architecture': 'test_vit3'}, 'there is no model.safetensors or pytorch_model.bin in this folder')])
def test_other_folders_are_refused(config, sentence, opt, tmp_path):
    if config:
        (tmp_path / 'config.json').write_text(config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(UserError, match=sentence):
        architectures.select(opt(arch=f'timm:local-dir:{tmp_path}'))


def test_timm_converts_weights_of_another_grid(opt, tmp_path, monkeypatch):
    """It resizes the embeddings of the positions, and takes all other weights as they are."""
    arch = 'vit_small_patch14_reg4_dinov2'
    monkeypatch.setattr(timm, 'create_model', functools.partial(timm.create_model, depth=1, embed_dim=24, num_heads=2))
    state = timm.create_model(arch, img_size=84, num_classes=5).state_dict()
    torch.save(state, tmp_path / 'w.pth')
    own = architectures.select(opt(arch=f'timm:{arch}', weights=str(tmp_path / 'w.pth'), input_size=56)
                               ).backbone.state_dict()
    assert own['pos_embed'].shape == (1, 16, 24) and state['pos_embed'].shape == (1, 36, 24)
    assert all(torch.equal(value, state[name]) for name, value in own.items() if name != 'pos_embed')


def test_weights_of_other_networks_are_not_converted(opt, tmp_path):
    def load(state, arch='timm:test_vit'):
        torch.save(state, tmp_path / 'w.pth')
        architectures.select(opt(arch=arch, weights=str(tmp_path / 'w.pth'), input_size=64))

    state = timm.create_model('test_vit', img_size=96).state_dict()
    with pytest.raises(UserError, match='have other shapes for .*patch_embed.proj.weight'):
        load(state | {'patch_embed.proj.weight': torch.zeros(64, 3, 8, 8)})
    with pytest.raises(UserError, match='they lack blocks.0.norm1.weight'):
        load({name: value for name, value in state.items() if name != 'blocks.0.norm1.weight'})
    with pytest.raises(UserError, match='not weights of timm:test_vit: the library cannot convert them'):
        load({'pos_embed': torch.zeros(3)})


def test_sizes_are_multiples_of_the_patch_size(opt):
    for flags, sentence in (({'input_size': 100}, '--input_size 100: .* patches of 16 pixels; give a multiple, such as '
                                                  '96 or 112$'),
                            ({'eval_size': 9}, '--eval_size 9: .* a multiple, such as 16$')):
        with pytest.raises(UserError, match=sentence):
            architectures.select_backbone(opt(arch='timm:test_vit', **flags))
    assert architectures.select_backbone(opt(arch='timm:test_vit', input_size=96, eval_size=112)).size == 96


@pytest.mark.parametrize('file', RECIPES, ids=lambda file: file.stem)
def test_the_recipes_train_a_network_in_a_folder(file, folder, run, quick, tmp_path, capsys):
    """Its weights are needed once: a resumed run takes them from its checkpoint."""
    copy = shutil.copytree(folder, tmp_path / 'copy')
    config = ['--config', file, '--arch', f'timm:local-dir:{copy}_normalize']
    opt = configuration.parse([*map(str, config)])
    assert opt.input_size % (14 * 16) == 0
    arguments = [*quick[:quick.index('--arch')], *quick[quick.index('--bs'):], *config, '--input_size', '32',
                 '--iterations_per_epoch', '1', '--evaluation_metrics', 'e_recall@1']
    assert run(*arguments, '--n_epochs', '1') == 0 and 'without effect' not in capsys.readouterr().err
    if file.stem == 'linear':
        (copy / 'model.safetensors').unlink()
        assert run('--resume', folder_of(tmp_path), '--n_epochs', '2') == 0
    assert len(rows_of(folder_of(tmp_path))) == (3 if file.stem == 'linear' else 2)
