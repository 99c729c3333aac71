"""main.py --export: both formats give what the network gives, without the program that trained it."""
import functools
import importlib.util
import json

import numpy as np
import pytest
import torch
from torchvision.models import mobilenetv2

import architectures
import datasets
import evaluation
import parameters
import retrieval
from retrieval import export
from tests.helpers import after_training, folder_of, with_blocks
from utilities.loading import network_input

SIZE = 64
NETWORKS = {'conv4': [], 'resnet50_frozen_normalize': ['--pool', 'gem'],
            'mobilenet_v2_normalize': ['--embed_layers', '32'],
            'bninception_normalize': ['--embed_norm', 'layer', '--pool', 'avg'],
            'timm:vit_tiny_patch16_224_normalize': [
                '--lora_rank', '2', '--prompts', '3', '--prompt_depth', '2', '--pool', 'token_patches']}


@pytest.fixture
def shallow(monkeypatch):
    """Networks of every kind of block that they have, but of few blocks, since each takes time to export."""
    monkeypatch.setattr(mobilenetv2, 'MobileNetV2', functools.partial(
        mobilenetv2.MobileNetV2, inverted_residual_setting=[[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]]))
    with_blocks(monkeypatch, [2, 1, 1, 1])
    if importlib.util.find_spec('timm'):
        import timm
        monkeypatch.setattr(timm, 'create_model', functools.partial(timm.create_model, depth=3))


def runner(file):
    """The program in an exported file: uint8 tensor -> embeddings."""
    if file.suffix == '.pt2':
        return torch.export.load(file).module()
    onnxruntime = pytest.importorskip('onnxruntime')
    session = onnxruntime.InferenceSession(file, providers=['CPUExecutionProvider'])
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape, made.name) == ('images', 'tensor(uint8)', ['batch', 3, SIZE, SIZE],
                                                                'embeddings')
    assert made.shape[0] == 'batch'
    return lambda images: torch.from_numpy(session.run(None, {'images': images.numpy()})[0])


def checkpoint_of(arch, flags, folder):
    """A checkpoint of an untrained network, but for its adapters, and for statistics that keep its images apart."""
    opt = parameters.parse(['--arch', arch, '--not_pretrained', '--input_size', str(SIZE), '--dataset', 'folder',
                            '--device', 'cpu', *flags])
    torch.manual_seed(0)
    network = architectures.select(opt)
    for name, tensor in network.state_dict().items():
        if name.endswith('.b'):
            tensor.normal_(std=.1)
    for module in network.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.train().momentum = None                                # the average over all batches
    with torch.no_grad():
        network(torch.rand(24, 3, SIZE, SIZE))
    file = folder / 'checkpoint.pt'
    torch.save({'settings': parameters.settings_of(opt), 'epoch': 0, 'model': network.state_dict()}, file)
    return file


@pytest.mark.parametrize('suffix', ['.pt2', '.onnx'])
@pytest.mark.parametrize('arch', NETWORKS)
def test_the_file_gives_the_embeddings_and_metrics_of_the_network(arch, suffix, shallow, patterns, tmp_path, run,
                                                                  capsys):
    for package in {'.onnx': ['onnx', 'onnxscript', 'onnxruntime']}.get(suffix, []) + (
            ['timm'] if ':' in arch else ['pretrainedmodels'] if 'bn' in arch else []):
        pytest.importorskip(package)
    checkpoint, file = checkpoint_of(arch, NETWORKS[arch], tmp_path), tmp_path / f'network{suffix}'
    assert after_training(checkpoint, 'export', file) == 0
    assert f'uint8 RGB [B, 3, {SIZE}, {SIZE}] -> float32 embeddings, after Resize(' in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith('.')] == []
    network, transform = retrieval.load(checkpoint, 'cpu')
    table = datasets.folder.class_folders(patterns / 'images')
    images = datasets.ImageSet(table, range(len(table.paths)), transform.pipeline)
    batch = images.transform.collate([image for image, _, _ in images.loaded(range(len(images)))])
    with torch.inference_mode():
        wanted = network(network_input(batch, torch.device('cpu')))
        program = runner(file)
        found = torch.cat([program(part.contiguous()) for part in batch.split([1, 2, 30, len(batch) - 33])])
    assert wanted.std(dim=0).max() > 1e-3
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    values = [evaluation.compute(['e_recall@1', 'map_at_r', 'nmi'], embeddings, images.labels)
              for embeddings in (found, wanted)]
    assert len({str({name: f'{value:.4f}' for name, value in metrics.items()}) for metrics in values}) == 1


def test_a_run_is_exported_with_its_last_weights_or_their_average(quick, run, tmp_path):
    assert run(*quick, '--ema', '0.5') == 0
    folder, found = folder_of(tmp_path), {}
    for flags in [], ['--eval_ema'], ['--eval_features', '--eval_normalize']:
        assert after_training(folder, 'export', tmp_path / 'network.pt2', *flags) == 0
        assert after_training(folder, 'embeddings', tmp_path / 'embeddings.npz', *flags) == 0
        file = np.load(tmp_path / 'embeddings.npz')
        _, transform = retrieval.load(folder)
        images = datasets.ImageSet(datasets.base.ImageTable([*file['paths']], [*file['class_names']]), range(5),
                                   transform.pipeline)
        batch = images.transform.collate([image for image, _, _ in images.loaded(range(len(images)))])
        found[str(flags)] = runner(tmp_path / 'network.pt2')(batch.contiguous()).numpy()
        np.testing.assert_allclose(found[str(flags)], file['embeddings'][:5], atol=1e-5)
    assert np.abs(found['[]'] - found["['--eval_ema']"]).max() > 1e-3


def test_the_file_describes_its_input(tmp_path, run):
    assert after_training(checkpoint_of('conv4', [], tmp_path), 'export', tmp_path / 'network.pt2') == 0
    files = {'description.json': ''}
    torch.export.load(tmp_path / 'network.pt2', extra_files=files)
    described = json.loads(files['description.json'])
    assert described['input'] == f'uint8 RGB [B, 3, {SIZE}, {SIZE}]' and 'CenterCrop' in described['before'][1]
    assert described['network'] == retrieval.load(tmp_path / 'checkpoint.pt')[0].id


@pytest.mark.parametrize('file, flags, sentence', [
    ('network.pth', [], 'network.pth: file name extension .pth: unknown; choose from .pt2, .onnx'),
    ('nowhere/network.pt2', [], 'there is no folder'),
    ('network.pt2', ['--pca', '2'], 'give --pca 0'),
    ('network.onnx', [], '.onnx needs onnx and onnxscript: pip install onnx onnxscript'),
    ('network.pt2', ['--evaluate', 'a'], '--evaluate has no effect'),
])
def test_what_cannot_be_exported(file, flags, sentence, tmp_path, run, capsys, monkeypatch):
    monkeypatch.setattr(export.importlib.util, 'find_spec', lambda name, find=importlib.util.find_spec: (
        None if name in ('onnx', 'onnxscript') else find(name)))
    assert after_training(checkpoint_of('conv4', [], tmp_path), 'export', tmp_path / file, *flags) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / file).exists()
