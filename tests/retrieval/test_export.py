"""Exports: both formats give what the network gives, without the program that trained it."""
import importlib.util
import json
import pickle
import re
import shutil

import pytest
import torch

import architectures
import configuration
import datasets
import retrieval
from evaluation.embedding import network_input
from records import published
from retrieval import export
from tests.helpers import after_training, folder_of, rows_of
from utilities.errors import UserError

SIZE = 64
NETWORKS = {'conv4_normalize': ['--pool', 'gem', '--embed_layers', '32', '--embed_norm', 'layer', '--input_bgr', 'true',
                                '--input_mean', '.4', '.5', '.6'],
            'timm:test_vit_normalize': ['--lora_rank', '2', '--pool', 'token_patches']}


def runner(file):
    """The program in an exported file: uint8 tensor -> embeddings."""
    if file.suffix == '.pt2':
        description = {'description.json': ''}
        program = torch.export.load(file, extra_files=description).module()
        program.described = json.loads(description['description.json'])
        return program
    onnxruntime = pytest.importorskip('onnxruntime')
    session = onnxruntime.InferenceSession(file, providers=['CPUExecutionProvider'])
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape, made.name) == ('images', 'tensor(uint8)', ['batch', 3, SIZE, SIZE],
                                                                'embeddings')
    assert made.shape[0] == 'batch'
    return lambda images: torch.from_numpy(session.run(None, {'images': images.numpy()})[0])


def checkpoint_of(arch, flags, folder):
    """A checkpoint of an untrained network, but for its adapters, and for statistics that keep its images apart."""
    opt = configuration.parse(['--arch', arch, '--not_pretrained', '--input_size', str(SIZE), '--dataset', 'folder',
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
    torch.save({'settings': configuration.recorded_settings(opt), 'epoch': 0, 'model': network.state_dict()}, file)
    return file


@pytest.mark.parametrize('arch, suffix', list(zip(NETWORKS, ['.pt2', '.onnx'], strict=True)))
def test_the_file_gives_the_embeddings_of_the_network(arch, suffix, patterns, tmp_path, capsys, monkeypatch):
    if suffix == '.onnx':
        vision_transformer = pytest.importorskip('timm.models.vision_transformer')
        for package in ('onnx', 'onnxscript', 'onnxruntime'):
            pytest.importorskip(package)
        create = vision_transformer._create_vision_transformer              # with 2 blocks instead of 6
        monkeypatch.setattr(vision_transformer, '_create_vision_transformer', lambda *arguments, **flags: create(
            *arguments, **flags | {'depth': 2}))
    checkpoint, file = checkpoint_of(arch, NETWORKS[arch], tmp_path), tmp_path / f'network{suffix}'
    assert after_training(checkpoint, 'export', file) == 0
    assert f'uint8 RGB [B, 3, {SIZE}, {SIZE}] -> float32 embeddings, after Resize(' in capsys.readouterr().out
    assert not [path for path in tmp_path.iterdir() if path.name.startswith('.')]
    network, transform = retrieval.load(checkpoint, 'cpu')
    table = datasets.folder.class_folders(patterns / 'images')
    images = datasets.ImageSet(table, range(len(table.paths)), transform.pipeline)
    batch, _, _ = images.batch(range(len(images)))
    with torch.inference_mode():
        wanted = network(network_input(batch, torch.device('cpu')))
        program = runner(file)
        pieces = [part.contiguous() for part in batch.split([1, 2, 30, len(batch) - 33])]
        found = torch.cat([program(part) for part in pieces])
        of_bytes = torch.cat([network(part) for part in pieces])
    assert wanted.std(dim=0).max() > 1e-3
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    if suffix == '.pt2':
        assert torch.equal(found, of_bytes)
        assert program.described['input'] == f'uint8 RGB [B, 3, {SIZE}, {SIZE}]'
        assert 'CenterCrop' in program.described['before'][1] and program.described['network'] == network.id


@pytest.mark.parametrize('arch, flags', [
    ('timm:test_vit_normalize', ['--input_size', '32', '--lora_rank', '2']),
    ('conv4_normalize', ['--embed_layers', '8', '--pool', 'gem', '--ema', '.5'])])
def test_a_folder_for_others_has_a_card_and_is_read_like_a_run(arch, flags, quick, patterns, run, tmp_path):
    assert run(*quick, '--arch', arch, '--n_epochs', '1', *flags) == 0
    source, folder = folder_of(tmp_path), tmp_path / 'v1.0'
    average = ['--eval_ema'] if '--ema' in flags else []
    opt = configuration.parse(['--evaluate', str(source), *average])
    assert after_training(source, 'export', '--hub', folder, *average) == 0
    assert {path.name for path in folder.iterdir()} == {
        'model.safetensors', 'embedding.safetensors', 'config.json', 'README.md'}
    wanted, _ = retrieval.loading.restore(opt, source)
    found, transform = retrieval.load(folder, 'cpu')
    images = torch.rand(4, 3, found.input_size, found.input_size)
    torch.testing.assert_close(found(images), wanted(images), rtol=0, atol=1e-6)
    assert after_training(folder, 'embeddings', tmp_path / 'embeddings.npz', '--source_path', patterns) == 0
    card = (folder / 'README.md').read_text()
    assert str(tmp_path) not in card and '\nlicense:\n' in card
    size, (mean, std) = found.input_size, (getattr(found.model, name).flatten().tolist() for name in ('mean', 'std'))
    assert f'red, green, blue, {size} x {size} pixels' in card and f'`CenterCrop(size=({size}, {size}))`' in card
    for row, values in (('subtracted', mean), ('a divisor', std)):
        printed = re.search(rf'{row} \| (.*) \|', card)[1]
        assert [*map(float, printed.split(', '))] == pytest.approx(values, rel=1e-5)
    value = rows_of(source)[-1]['ema_test_map_at_r' if average else 'test_map_at_r']
    assert f'| map_at_r | {float(value):.4f} |' in card
    assert run(*quick, '--arch', f'timm:local-dir:{folder}_normalize', '--weights', folder / 'model.safetensors',
               '--input_size', '32', '--n_epochs', '0') == (0 if ':' in arch else 2)
    if ':' in arch:
        import timm
        backbone = timm.create_model(f'local-dir:{folder}', pretrained=True, num_classes=0).eval()
        features = wanted.model(images)[1]
        torch.testing.assert_close(backbone(found.model.normalised(images)), features, rtol=0, atol=1e-5)
        of_flag = architectures.select(configuration.parse(
            ['--arch', f'timm:local-dir:{folder}_normalize', '--input_size', '32', '--device', 'cpu'])).eval()
        torch.testing.assert_close(of_flag(images)[1], features, rtol=0, atol=1e-5)
    with pytest.raises(UserError, match='this folder has files already, or'):
        export.write(opt, source, folder, hub=True)


@pytest.mark.parametrize('recorded, given, has_norm_1, has_metrics', [
    ([], [], True, True), ([], ['--eval_features'], False, False), ([], ['--eval_normalize'], True, False),
    (['--eval_views', 'flip'], [], False, True), (['--cascade', '1', '2', '--embed_dim', '12'], [], False, True),
    (['--augmentation', 'big'], [], True, True), (['--pca', '4'], ['--pca', '0'], True, False)])
def test_a_card_claims_what_is_true_of_the_exported_embeddings(recorded, given, has_norm_1, has_metrics, tmp_path):
    is_of_any_size = '--augmentation' in recorded
    file = checkpoint_of('mobilenet_v2_normalize' if is_of_any_size else 'conv4_normalize', recorded, tmp_path)
    states = torch.load(file) | {'epoch': 5, 'row': {'epoch': 4, 'test_map_at_r': .25}}
    if is_of_any_size:
        states['settings']['input_size'] = None                   # as of a run that leaves it to --augmentation
    torch.save(states, file)
    assert after_training(file, 'export', '--hub', tmp_path / 'hub', *given) == 0
    card = (tmp_path / 'hub' / 'README.md').read_text()
    assert ('and norm 1' in card) == has_norm_1 and 'after epoch 5 |' in card
    table = '| metric of the test split, after epoch 4 | value |\n|---|---:|\n| map_at_r | 0.2500 |\n\n'
    assert (table in card) == has_metrics == ('map_at_r' in card)


@pytest.fixture(scope='module')
def untrained(tmp_path_factory):
    """The checkpoint of a conv4."""
    return checkpoint_of('conv4', [], tmp_path_factory.mktemp('untrained'))


@pytest.fixture(scope='module')
def hub(untrained):
    """The exported folder of `untrained`."""
    export.write(configuration.parse(['--evaluate', str(untrained)]), untrained, untrained.with_name('hub'), hub=True)
    return untrained.with_name('hub')


@pytest.mark.parametrize('change, sentence', [
    ({'flags': {'weights': '/etc/passwd'}}, 'weights: no flags of a network'),
    ({'flags': {'arch': 'timm:hf-hub:somebody/else'}}, 'expected a network without a place from which to load it'),
    ({'flags': {'arch': 'resnet18'}}, '--arch resnet18: unknown'),
    ({'flags': {'embed_dim': 10 ** 9}}, 'its weights do not fit the flags'),
    ({'flags': {'embed_dim': 'many'}}, '--embed_dim'), ({'flags': {'pool': 'token'}}, '--pool token'),
    ({'flags': {'embed_bias': False}}, 'its weights do not fit the flags'),
    ({'flags': {'embed_layers': [10 ** 9]}}, 'its weights do not fit the flags'),
    ({'flags': {'prompts': 10 ** 9}}, 'it was trained with --prompts 1000000000'),
    ({'flags': {'eval_resize': 10 ** 8}}, '--eval_resize: expected a whole number of at least 1 and at most 10000'),
    ({'flags': {'eval_size': 10 ** 8}}, '--eval_size: expected'),
    ({'flags': {'input_size': 10 ** 8}}, '--input_size: expected'),
    ({'epoch': float('inf')}, 'it does not describe an embedding network'),
    ({'epoch': None}, 'it does not describe an embedding network'), ({'flags': 3}, 'it does not describe an embedding'),
    (None, 'it does not describe an embedding network'),
    ('cut off', 'not weights in the format safetensors but a'),
    ('no weights', 'there is no checkpoint'), ('pickle', 'not weights in the format safetensors but a pickle')])
def test_a_changed_folder_is_refused_in_a_sentence(change, sentence, hub, tmp_path):
    folder = shutil.copytree(hub, tmp_path / 'hub')
    config, weights = json.loads((folder / 'config.json').read_text()), folder / 'model.safetensors'
    entry = config['embedding_network']
    if change == 'cut off':
        weights.write_bytes(weights.read_bytes()[:-5])
    elif change == 'no weights':
        weights.unlink()
    elif change == 'pickle':
        weights.write_bytes(pickle.dumps({'a': 1}))
    elif change is None:
        config = [config]
    else:
        for name, value in change.items():
            entry[name] = entry[name] | value if name == 'flags' and isinstance(value, dict) else value
    if change is not None and isinstance(change, dict):
        entry['sha256']['config.json'] = published.checksum(entry)                 # by whoever changed it on purpose
    elif change == 'cut off' or change == 'pickle':
        entry.pop('sha256')                                  # as in a folder of an earlier program
    (folder / 'config.json').write_text(json.dumps(config))
    with pytest.raises(UserError, match=sentence):
        retrieval.load(folder, 'cpu')


@pytest.mark.parametrize('file, change', [
    ('model.safetensors', 2000), ('embedding.safetensors', -3), ('config.json', {'interpolation': 'bicubic'}),
    ('config.json', {'input_mean': [.4, .5, .6]}), ('config.json', {'input_bgr': True}),
    ('config.json', {'arch': 'googlenet'})])
def test_a_flipped_bit_and_a_changed_preprocessing_are_noticed(file, change, hub, tmp_path):
    folder = shutil.copytree(hub, tmp_path / 'hub')
    retrieval.load(folder, 'cpu')
    if file == 'config.json':
        config = json.loads((folder / file).read_text())
        config['embedding_network']['flags'] |= change
        (folder / file).write_text(json.dumps(config))
    else:
        content = bytearray((folder / file).read_bytes())
        content[change] ^= 1 << 6
        (folder / file).write_bytes(content)
    with pytest.raises(UserError, match=f'{folder}/{file}: it was changed, or damaged, since it was exported'):
        retrieval.load(folder, 'cpu')


@pytest.mark.parametrize('file, flags, sentence', [
    ('network.pth', [], 'network.pth: file name extension .pth: unknown; choose from .pt2, .onnx'),
    ('nowhere/network.pt2', [], 'there is no folder'),
    ('network.pt2', ['--pca', '2'], 'Give --pca 0'),
    ('network.onnx', [], '.onnx needs onnx and onnxscript: pip install onnx onnxscript'),
    ('network.pt2', ['--evaluate', 'a'], '--evaluate has no effect'),
])
def test_what_cannot_be_exported(file, flags, sentence, untrained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(export.importlib.util, 'find_spec', lambda name, find=importlib.util.find_spec: (
        None if name in ('onnx', 'onnxscript') else find(name)))
    assert after_training(untrained, 'export', tmp_path / file, *flags) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / file).exists()


def test_a_network_is_exported_to_one_file_and_to_a_folder_of_its_own(untrained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert after_training(untrained, 'export', '--hub', '.') == 2
    assert 'or is the current one; give a new one' in capsys.readouterr().err
    pytest.importorskip('onnx'), pytest.importorskip('onnxscript')
    monkeypatch.setattr(export, 'ONNX_BYTES', 1e5)
    assert after_training(untrained, 'export', 'network.onnx') == 2
    assert 'a .onnx file holds 0.0 GB at most; give a file that ends in .pt2, or --hub' in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []
