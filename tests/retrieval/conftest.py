"""A trained network of seconds, shared by the tests of this folder."""
import pytest

import main
import Retrieve_Images
from tests.conftest import draw_classes
from tests.helpers import folder_of


def train(place, *flags):
    """The folder of a run on 6 classes of 4 images in place / 'data'."""
    draw_classes(place / 'data' / 'images', 6, 4)
    arguments = ['--dataset', 'folder', '--source_path', str(place / 'data'), '--arch', 'conv4_normalize',
                 '--not_pretrained', '--input_size', '16', '--bs', '6', '--samples_per_class', '2', '--n_epochs', '1',
                 '--iterations_per_epoch', '1', '--embed_dim', '16', '--kernels', '0', '--device', 'cpu',
                 '--save_path', str(place / 'runs'), '--group', 'quick', '--pictures', 'none',
                 '--evaluation_metrics', 'e_recall@1', *flags]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('sys.argv', ['main.py'])
        assert main.main(arguments) == 0
    return folder_of(place)


@pytest.fixture(scope='session')
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp('trained'))


@pytest.fixture(scope='session')
def another(tmp_path_factory):
    """A run like `trained`, with another seed."""
    return train(tmp_path_factory.mktemp('another'), '--seed', '2').with_name('quick_s2')


@pytest.fixture
def photos(tmp_path):
    """A folder with 12 images in two folders, and one that cannot be read."""
    folder = draw_classes(tmp_path / 'photos', 2, 6, seed=5)
    (folder / 'class_00' / 'broken.jpg').write_bytes(b'no image')
    return folder


@pytest.fixture
def call(capsys):
    """Runs a command with arguments; returns the exit code, and what it printed to stdout and to stderr."""
    def run_command(*arguments):
        capsys.readouterr()
        machine = {'remove': [], 'serve': ['--device', 'cpu']}.get(arguments[0], ['--device', 'cpu', '--kernels', '0'])
        code = Retrieve_Images.main([*map(str, arguments), *machine])
        return code, *capsys.readouterr()
    return run_command


@pytest.fixture
def index(call, trained, photos, tmp_path):
    code, out, err = call('index', trained, photos, '--out', tmp_path / 'index')
    assert code == 0 and out == f'{tmp_path / "index"}: 12 images, exact search\n'
    assert 'Not embedded, since they cannot be read: 1 of 13 images; all of them: ' in err
    return tmp_path / 'index'
