"""Rectangular input and the whole image: --input_size H W, --eval_fit, --augmentation reid."""
import json

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2

import architectures
import configuration
import hubconf
import retrieval
import Retrieve_Images
import tests.test_docs
from datasets import decoding, transforms
from records import run_folder
from tests.helpers import after_training, export_here, folder_of, rows_of
from utilities.errors import UserError

MEAN = (124, 116, 104)


def draw_people(folder, n_people=5, n_images=8):
    """Photos of 64 x 128 pixels of people whose head and legs differ, and whose middle, 64 rows of 128, does not."""
    random = np.random.default_rng(0)
    middle = random.integers(0, 256, (64, 64, 3))
    for person in range(2 * n_people):
        body = np.concatenate([random.integers(0, 256, (32, 64, 3)), middle, random.integers(0, 256, (32, 64, 3))])
        place = folder / 'images' / f'person_{person}'
        place.mkdir(parents=True)
        for number in range(n_images):
            pixels = (body + random.normal(0, 10, body.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / f'{number}.png')
    return folder


@pytest.fixture(scope='module')
def people(tmp_path_factory):
    return draw_people(tmp_path_factory.mktemp('people'))


@pytest.mark.parametrize('flags, sees_all', [
    (['--input_size', '64'], False),                                 # the centre crop of a square sees 56 of 128 rows
    (['--input_size', '64', '--eval_fit', 'pad'], True),
    (['--input_size', '64', '--eval_fit', 'stretch'], True),
    (['--input_size', '128', '64'], True),
])
def test_who_differs_in_head_and_legs_only(flags, sees_all, people, quick, run, tmp_path):
    assert run(*quick, '--source_path', people, *flags, '--n_epochs', '0', '--eval_features', '--eval_normalize',
               '--evaluation_metrics', 'e_recall@1') == 0
    found = float(rows_of(folder_of(tmp_path))[-1]['test_e_recall@1'])
    assert found == 1 if sees_all else found <= 0.4                  # five people: by chance 0.18


@pytest.mark.parametrize('width, height', [(64, 128), (100, 60), (33, 33)])
def test_images_fit_as_pillow_fits_them(width, height, opt, tmp_path):
    for mode in ('RGB', 'L'):
        pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
        image = Image.fromarray(pixels).convert(mode)
        image.save(tmp_path / 'image.png')
        image = image.convert('RGB')
        size, method = (32, 64), Image.Resampling.BILINEAR
        enlarged = ImageOps.cover(image, (37, 74), method)           # 8/7 of the shorter side, in the ratio
        left, top = round((enlarged.width - 32) / 2), round((enlarged.height - 64) / 2)
        references = {'pad': ImageOps.pad(image, size, method, MEAN), 'stretch': image.resize(size, method),
                      'crop': enlarged.crop((left, top, left + 32, top + 64))}
        for fit, reference in references.items():
            flags = opt(eval_fit=fit, augmentation='none')
            for pipeline in transforms.select(flags, [64, 32]):
                found = pipeline(decoding.read_upright(tmp_path / 'image.png'))
                expected = v2.functional.to_dtype(v2.functional.pil_to_tensor(reference), scale=True)
                assert torch.equal(found, expected), fit


def test_reid_is_torchvisions_by_the_paper(opt):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (128, 50, 3), np.uint8))
    training, evaluation = transforms.select(opt(augmentation='reid', random_erasing=0.5), [64, 32])
    paper = v2.Compose([v2.Resize((64, 32)), v2.Pad(10), v2.RandomCrop((64, 32)), v2.RandomHorizontalFlip(),
                        v2.ToImage(), v2.RandomErasing(0.5, value=MEAN), v2.ToDtype(torch.float32, scale=True)])
    for seed in range(10):
        torch.manual_seed(seed)
        found = training(image)
        torch.manual_seed(seed)
        assert torch.equal(found, paper(image))
    stretched = v2.Compose([v2.Resize((64, 32)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    assert torch.equal(evaluation(image), stretched(image))


def test_training_crops_have_the_ratio_of_the_input(opt):
    crop = transforms.select(opt(), [256, 128])[0].transforms[0]
    assert tuple(crop.size) == (256, 128) and crop.ratio == (3 / 8, 4 / 6)
    assert transforms.select(opt(crop_ratio=[.4, .6]), [256, 128])[0].transforms[0].ratio == [.4, .6]


@pytest.mark.parametrize('arch, flags', [
    ('conv4', ()), ('resnet50', ()), ('timm:test_vit', ('--eval_views', 'flip')), ('timm:test_vit3', ()),
    ('torchvision:mobilenet_v2', ('--pool', 'gem', '--eval_size', '96', '64'))])
def test_networks_take_rectangles(arch, flags):
    opt = configuration.parse(['--arch', arch, '--not_pretrained', '--input_size', '64', '32', *flags])
    if arch.startswith('timm:'):
        pytest.importorskip('timm')
    model = architectures.select(opt).eval()
    with torch.no_grad():
        embeddings, features = model(torch.rand(2, 3, 64, 32))
    assert model.input_size == [64, 32]
    assert embeddings.shape == (2, 128) and features.shape == (2, model.n_features)


def test_a_network_of_timm_for_tall_images_keeps_its_size(monkeypatch):
    """As that of vit_base_patch16_sapiens2, which is larger."""
    timm = pytest.importorskip('timm')
    config = timm.data.resolve_model_data_config
    monkeypatch.setattr(timm.data, 'resolve_model_data_config', lambda net: config(net) | {'input_size': (3, 64, 32)})
    opt = configuration.parse(['--arch', 'timm:test_resnet_normalize', '--not_pretrained'])
    assert architectures.select(opt).input_size == [64, 32]


@pytest.mark.parametrize('flags, sentence', [
    (['--arch', 'torchvision:vit_b_16', '--input_size', '64', '32'],
     '--input_size 64 x 32: the network cannot process images of this size'),
    (['--arch', 'timm:test_vit', '--input_size', '64', '40'],
     '--input_size 64 x 40: .* patches of 16 pixels; give a multiple, such as 32 or 48$'),
    (['--input_size', '64', '32', '16'], '--input_size: expected one number, or height and width, not 64 32 16$'),
    (['--input_size', '64', '0'], '--input_size: expected .*, not 0$'),
    (['--arch', 'conv4', '--input_size', '64', '32', '--eval_size', '64', '64'],
     '--eval_size 64: --arch conv4 has another number of features .*; give --pool, or leave --eval_size out$'),
    (['--arch', 'conv4', '--input_size', '64', '32', '--cascade', '1', '--cascade_fractions', '0.5'],
     '--input_size 64 x 32: --cascade takes square images only$'),
    (['--arch', 'conv4', '--pool', 'avg', '--input_size', '64', '--eval_size', '64', '32', '--cascade', '1',
      '--cascade_fractions', '0.5'], '--eval_size 64 x 32: --cascade takes square images only$')])
def test_what_cannot_be_is_refused_by_a_sentence(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        architectures.select(configuration.parse(['--not_pretrained', *flags]))


def test_a_square_is_one_number():
    for given in (['64'], ['64', '64']):
        opt = configuration.parse(['--input_size', *given])
        assert opt.input_size == 64 and configuration.recorded_settings(opt)['input_size'] == 64


def test_a_run_and_its_network_elsewhere(people, quick, run, tmp_path, monkeypatch):
    """After a resumed run: the embeddings by Evaluate_Network.py, retrieval, an export by torch.hub, and an index."""
    flags = [*quick, '--source_path', people, '--input_size', '48', '32', '--augmentation', 'reid', '--random_erasing',
             '0.5', '--pictures', 'retrieval', '--eval_fit', 'pad', '--eval_views', 'flip', '--n_epochs', '1',
             '--bs', '10']
    assert run(*flags) == 0
    folder = folder_of(tmp_path)
    assert run('--resume', folder, '--n_epochs', '2') == 0
    assert run_folder.read(folder)['flags']['input_size'] == [48, 32] and len(rows_of(folder)) == 3
    assert (folder / 'retrieval_test.png').exists()
    assert after_training(folder, 'embeddings', tmp_path / 'out.npz', '--splits_to_eval', 'test') == 0
    written = np.load(tmp_path / 'out.npz')
    paths, expected = written['paths'].tolist(), torch.from_numpy(written['embeddings'])
    network, transform = retrieval.load(folder, 'cpu')
    torch.testing.assert_close(retrieval.embed(network, transform, paths), expected, rtol=0, atol=1e-5)
    images = torch.stack([transform(Image.open(path)) for path in paths])
    assert images.shape[1:] == (3, 48, 32)
    with torch.no_grad(), pytest.raises(UserError, match=r'expected RGB images \[B, 3, 48, 32\]'):
        network(images[..., :31])

    export_here(monkeypatch)
    hub = hubconf.network(folder)
    assert hub.description['input'] == 'uint8 RGB [B, 3, 48, 32]'
    torch.testing.assert_close(hub((images * 255).round().to(torch.uint8)), expected, rtol=0, atol=1e-5)
    assert after_training(folder, 'export', '--hub', tmp_path / 'hub') == 0
    assert '| input | red, green, blue, 48 x 32 pixels (height x width)' in (tmp_path / 'hub' / 'README.md').read_text()
    published = retrieval.embed(*retrieval.load(tmp_path / 'hub', 'cpu'), paths)
    torch.testing.assert_close(published, expected, rtol=0, atol=1e-5)

    machine = ['--device', 'cpu', '--kernels', '0']
    assert Retrieve_Images.main(['index', str(folder), *paths, '--out', str(tmp_path / 'index'), *machine]) == 0
    assert Retrieve_Images.main(['query', str(tmp_path / 'index'), paths[0], '--json', str(tmp_path / 'found.json'),
                                 '--picture', str(tmp_path / 'found.png'), *machine]) == 0
    nearest = json.loads((tmp_path / 'found.json').read_text())[0]['nearest']
    distances = torch.cdist(expected[:1], expected)[0].sort().values
    assert [one['distance'] for one in nearest] == pytest.approx(distances[:len(nearest)].tolist(), abs=1e-3)
    assert Image.open(tmp_path / 'found.png').width > 100


def test_the_run_of_the_page(tmp_path, monkeypatch):
    tests.test_docs.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('sys.argv', ['main.py'])
    small = [word for word in tests.test_docs.SMALL if word not in ('--input_size', '16')]
    assert tests.test_docs.follow('docs/networks.md', 'Tall images', small=small) == ['main.py']
    flags = run_folder.read(next((tmp_path / 'Training_Results' / 'folder').iterdir()))['flags']
    assert flags['input_size'] == [256, 128] and flags['augmentation'] == 'reid'
