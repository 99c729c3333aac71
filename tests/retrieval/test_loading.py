"""retrieval.load against main.py --embed, which builds the network together with its data."""
import io
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import main
import retrieval
from datasets.pipeline import Pipeline
from evaluation.embedding import network_id
from retrieval import loading
from tests.helpers import after_training
from tests.retrieval.conftest import train
from utilities.errors import UserError


@pytest.mark.parametrize('flags', [(), ('--eval_features', '--eval_normalize'), (
    '--eval_size', '24', '--ema', '0.5', '--eval_ema', '--augmentation', 'characters')])
def test_embeddings_are_those_of_embed(flags, trained, tmp_path, run):
    folder = train(tmp_path, *flags) if flags else trained
    assert after_training(folder, 'embeddings', tmp_path / 'out.npz') == 0
    written = np.load(tmp_path / 'out.npz')
    network, transform = retrieval.load(folder, 'cpu')
    assert np.array_equal(retrieval.embed(network, transform, written['paths'].tolist(), bs=6), written['embeddings'])
    assert retrieval.embed(network, transform, []).shape == (0, written['embeddings'].shape[1])
    images = torch.stack([transform(Image.open(path)) for path in written['paths'][:6]])
    assert images.shape == (6, 3, network.input_size, network.input_size)
    embeddings = network(images)
    assert not embeddings.requires_grad and not network.model.training
    torch.testing.assert_close(embeddings, torch.from_numpy(written['embeddings'][:6]), rtol=0, atol=1e-6)


def test_gradients_stay_on_where_an_embedding_is_not_continued(trained):
    network, transform = retrieval.load(trained, 'cpu')
    batches = loading.embed_in_batches(network, transform, [Image.new('RGB', (16, 16))] * 4, bs=2)
    next(batches)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_the_data_of_the_run_are_not_needed_and_nothing_else_changes(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(main.parts.datasets, 'select', lambda *arguments: 1 / 0)
    torch.manual_seed(3)
    deterministic = torch.are_deterministic_algorithms_enabled()
    network, _ = retrieval.load(trained, 'cpu')
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    drawn = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(2))
    of_file, _ = retrieval.load(trained / 'checkpoint_last.pt', 'cpu')
    assert of_file.id == network.id


def test_the_id_depends_on_weights_and_settings(trained, another, tmp_path):
    """With three flags of earlier versions, so that their indexes stay valid."""
    network, _ = retrieval.load(trained, 'cpu')
    assert retrieval.load(another, 'cpu')[0].id != network.id
    settings = network.settings | {'decode': 'exact', 'prompt_depth': 0, 'prompts': 0}
    assert network_id(network.model, settings) == network.id
    assert network_id(network.model, settings | {'eval_size': 8}) != network.id


def odd_images():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (30, 40, 4), dtype=np.uint8)
    rgb = Image.fromarray(pixels[..., :3])
    turned = rgb.copy()
    turned.getexif()[0x0112] = 6
    return {'transparent': Image.fromarray(pixels), 'grey': Image.fromarray(pixels[..., 0]),
            'palette': rgb.quantize(16), 'black and white': rgb.convert('1'), 'turned': turned,
            '16 bit': Image.fromarray(random.integers(0, 2 ** 16, (30, 40), dtype=np.uint16))}


@pytest.mark.parametrize('kind', odd_images())
def test_images_of_all_modes_give_the_pixels_of_their_files(kind, trained, tmp_path):
    network, transform = retrieval.load(trained, 'cpu')
    image = odd_images()[kind]
    image.save(tmp_path / 'image.png', exif=image.getexif())
    image = Image.open(tmp_path / 'image.png')
    size, mode = image.size, image.mode
    of_file, of_image = retrieval.embed(network, transform, [tmp_path / 'image.png', image])
    assert torch.equal(of_file, of_image)
    torch.testing.assert_close(network(transform(image)[None])[0], of_image, rtol=0, atol=1e-6)
    assert (image.size, image.mode) == (size, mode)                   # the caller's image stays as it is
    if kind == 'turned':
        rotated = Image.fromarray(np.rot90(np.asarray(image), -1))
        upright = retrieval.embed(network, transform, [rotated])[0]
        torch.testing.assert_close(of_image, upright, rtol=0, atol=1e-6)


def test_what_cannot_be_loaded(trained, photos, tmp_path):
    network, transform = retrieval.load(trained, 'cpu')
    with pytest.raises(UserError, match='broken.jpg: not a readable image'):
        retrieval.embed(network, transform, sorted((photos / 'class_00').iterdir()), bs=2)
    assert retrieval.embed(network, transform, []).shape == (0, 16)
    file = io.BytesIO()
    Image.new('RGB', (300, 300), 'red').save(file, 'PNG')
    with pytest.raises(UserError, match='not a readable image .*truncated'):
        retrieval.embed(network, transform, [Image.open(io.BytesIO(file.getvalue()[:-60]))])
    odd = loading.Transform(Pipeline([lambda image: image.convert('CMYK')]))
    with pytest.raises(UserError, match=r'1.png: not a readable image \(the transforms .* a PIL image of mode CMYK'):
        retrieval.embed(network, odd, photos / 'class_00' / '1.png')
    with pytest.raises(UserError, match='nowhere: not a run folder'):
        retrieval.load(tmp_path / 'nowhere')
    with pytest.raises(UserError, match='--device'):
        retrieval.load(trained, 'tpu')
    reduced = shutil.copytree(trained, tmp_path / 'reduced')
    config = (reduced / 'config.yaml').read_text()
    (reduced / 'config.yaml').write_text(config.replace('  pca: 0\n', '  pca: 4\n'))
    with pytest.raises(UserError, match='--pca 4 is fitted on .*reduced export --hub FOLDER --pca 0'):
        retrieval.load(reduced)
    assert after_training(reduced, 'export', '--hub', tmp_path / 'hub', '--pca', '0') == 0
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(retrieval.load(tmp_path / 'hub', 'cpu')[0](images), network(images))


def test_the_network_takes_bytes_and_refuses_other_shapes(trained, photos):
    network, transform = retrieval.load(trained, 'cpu')
    path = photos / 'class_00' / '1.png'
    assert torch.equal(retrieval.embed(network, transform, path), retrieval.embed(network, transform, [str(path)]))
    for one in (str(path), Image.open(path)):
        assert torch.equal(retrieval.embed(network, transform, one), retrieval.embed(network, transform, path))
    image = transform(Image.open(path))[None]
    torch.testing.assert_close(network((255 * image).round().to(torch.uint8)), network(image), rtol=0, atol=1e-5)
    for images in (image[0], image[:, :1], image[..., :-1], image.permute(0, 2, 3, 1)):
        with pytest.raises(UserError, match=r'expected RGB images \[B, 3, 16, 16\]'):
            network(images)
    with pytest.raises(UserError, match='expected images of type uint8, or floating ones .* not torch.int64'):
        network((255 * image).long())


@pytest.mark.parametrize('given', [b'bytes of a file', [b'bytes'], np.zeros((8, 8, 3), np.uint8), [np.zeros((8, 8, 3))],
                                   torch.zeros(1, 3, 16, 16), 3])
def test_what_is_no_image_is_refused_in_a_sentence(given, trained):
    network, transform = retrieval.load(trained, 'cpu')
    with pytest.raises(UserError, match=r'expected PIL images or paths, not \w+: Image.open.io.BytesIO'):
        retrieval.embed(network, transform, given)
    if not isinstance(given, list):
        with pytest.raises(UserError, match='expected PIL images'):
            transform(given)
    with pytest.raises(UserError, match=r'a.png: the transform takes PIL images: Image.open\(path\)'):
        transform('a.png')


def test_floating_point_images_have_values_from_0_to_1(trained):
    network, _ = retrieval.load(trained, 'cpu')
    pixels = torch.randint(0, 256, (2, 3, 16, 16), generator=torch.manual_seed(0)).byte()
    torch.testing.assert_close(network(pixels), network(pixels / 255))
    for images in (pixels.float(), pixels / 255 * 4 - 2, torch.full((1, 3, 16, 16), torch.nan)):
        with pytest.raises(UserError, match=r'values in \[0, 1\], not from .*: divide by 255, or give uint8'):
            network(images)

