"""The commands and the files of the pages, as they are printed there."""
import http.client
import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from PIL import Image

import batch_mining
import configuration
import criteria
import datasampler
import Evaluate_Ensemble
import Hyperparameter_Search
import Launch_Runs
import main
import parameters
import Result_Evaluations
import retrieval
import Retrieve_Images
from benchmarks import scale
from flags import command_line
from retrieval import server
from tests.conftest import draw_classes
from tests.helpers import ROOT, published, rows_of
from tests.test_structure import PAGES

PARSERS = {module.__name__: module.build for module in (Evaluate_Ensemble, Hyperparameter_Search, Launch_Runs,
                                                        Result_Evaluations, Retrieve_Images, scale)}
SMALL = ['--arch', 'conv4_normalize', '--not_pretrained', '--input_size', '16', '--n_epochs', '1', '--embed_dim', '8',
         '--kernels', '0', '--device', 'cpu', '--pictures', 'none']


def commands(text):
    """The `python NAME.py ...` and `python -m NAME ...` commands of a page's code blocks, lists of words from NAME."""
    for language, block in re.findall(r'^ *```(\w*).*?\n(.*?)^ *```', text, re.DOTALL | re.MULTILINE):
        for line in map(str.strip, block.replace('\\\n', ' ').splitlines() if language in ('', 'bash', 'sh') else ()):
            line = line.replace('python -m ', 'python ')
            if re.match(r'python [\w.]+ ', line) and '"$@"' not in line:                  # flags of a function's caller
                yield shlex.split(re.sub(r'\$\w+', '1', line), comments=True)[1:]   # $: the variable of a loop


def flags_of(words):
    return {word[2:].split('=')[0] for word in words if word.startswith('--')}


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_the_commands_of_the_pages_parse(page, monkeypatch):
    monkeypatch.chdir(ROOT)                                                     # where the files of --config are
    known = {*command_line.known_flags(parameters.build())}
    for program, *arguments in commands(page.read_text()):
        if program == 'main.py':
            flags = flags_of(arguments) - {'loss_softmargin_scale'}
            assert flags <= known, arguments
            elsewhere = {'resume', 'evaluate', 'reproduce', 'start_from', 'help'}
            configs = [word for word in arguments if word.endswith('.yaml')]
            if not flags & elsewhere and 'softmargin' not in arguments and all(map(Path.exists, map(Path, configs))):
                configuration.parse(arguments)                    # the others need a folder or a file of the reader's
        elif program.removesuffix('.py') in PARSERS:           # Evaluate_Network.py: tests/retrieval/test_actions.py
            own, of_runs = command_line.parted(arguments)
            _, rest = PARSERS[program.removesuffix('.py')]().parse_known_args(own)
            if program == 'Hyperparameter_Search.py' or own[0] == 'suspects':             # which hand on the rest
                of_runs += rest
            else:
                assert not rest, arguments
            assert flags_of(of_runs) <= known, arguments


def blocks(page, language):
    return re.findall(rf'```{language}\n(.*?)```', (ROOT / page).read_text(), re.DOTALL)


def test_the_three_lines_of_the_readme_give_a_loss_and_train_its_proxies():
    code, _ = blocks('README.md', 'python')
    found = {'torch': torch, 'embeddings': torch.randn(8, 128), 'labels': torch.arange(8) // 2,
             'optimizer': torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])}
    exec(code.replace('path/to/dml', str(ROOT)), found)
    found['loss'].backward()
    assert found['optimizer'].param_groups[1]['params'][0].grad.any()


def section(page, title):
    """Returns the text below a heading, up to the next one."""
    return re.search(rf'\n##+ {title}\n(.*?)(?=\n##+ |\Z)', (ROOT / page).read_text(), re.DOTALL)[1]


def follow(page, title, *first, small=SMALL):
    """
    Runs the commands of a section of a page in this process and in the current folder, in their order: each run with
    the flags `small`, a server on any free port. first: what Launch_Runs.py gets before its own words.

    Returns the programs, and the first words for Retrieve_Images.py.
    """
    done = []
    for program, *words in commands(section(page, title)):
        if program == 'Launch_Runs.py':
            words = [*first, *words, *([] if '--' in words else ['--']), *small]
        more = small if '--dataset' in words else ['--port', '0'] if words[0] == 'serve' else []
        code = importlib.import_module(program.removesuffix('.py')).main([*words, *more])
        assert code == (130 if words[0] == 'serve' else 0), words
        done.append(words[0] if program == 'Retrieve_Images.py' else program)
    return done


def draw_photos(folder, names):
    """Draws a folder of five JPEG files, 1.jpg to 5.jpg, for each name."""
    for name, drawn in zip(names, sorted(draw_classes(folder, len(names), 5, side=16).iterdir()), strict=True):
        for file in drawn.iterdir():
            Image.open(file).save(drawn / f'{int(file.stem) + 1}.jpg')
            file.unlink()
        drawn.rename(folder / name)


def prepare(folder):
    """Makes what a reader has before the first command: parts of a checkout, photos, data in the layout of CUB200."""
    for name in ('configs', 'run_scripts'):
        (folder / name).symlink_to(ROOT / name)
    lines = (ROOT / 'Revisit_Runs.sh').read_text()
    assert 'for data in CUB CARS SOP;' in lines
    (folder / 'Revisit_Runs.sh').write_text(lines.replace('for data in CUB CARS SOP;', 'for data in CUB;'))
    draw_photos(folder / 'photos' / 'images', ['lemon', *(f'n{number}' for number in range(18)), 'plum'])
    draw_photos(folder / 'Datasets' / 'cub200' / 'images', [f'{number:03d}.Bird' for number in range(1, 9)])
    (folder / 'Datasets' / 'cub200' / 'CUB_200_2011.tgz.unpacked').touch()               # so that nothing is downloaded


@pytest.fixture(scope='module')
def reader(tmp_path_factory):
    """The folder of a reader after the first run of docs/start.md."""
    folder = tmp_path_factory.mktemp('reader')
    prepare(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr('sys.argv', ['main.py'])
        assert follow('docs/start.md', 'Train') == ['main.py']
    return folder


@pytest.fixture
def there(reader, monkeypatch):
    monkeypatch.chdir(reader)
    monkeypatch.setattr('sys.argv', ['main.py'])
    return reader


def test_the_commands_of_the_start_page_draw_and_search(there, monkeypatch, capsys):
    """In their order; `serve` shows its page until Ctrl-C."""
    def visit(seconds):
        host, port = re.search(r'http://([\d.]+):(\d+)', capsys.readouterr().out).groups()
        connection = http.client.HTTPConnection(host, int(port))
        connection.request('GET', '/')
        assert b'<html' in connection.getresponse().read()
        raise KeyboardInterrupt
    monkeypatch.setattr(server.stopping, 'sleep', visit)
    assert follow('docs/start.md', 'Pictures and metrics') == ['Evaluate_Network.py', 'main.py', 'main.py']
    assert follow('docs/start.md', 'Wrong labels') == ['suspects']
    assert follow('docs/start.md', 'Search') == ['index', 'query', 'query', 'serve', 'add', 'remove']
    assert all((there / name).exists() for name in ('drawn/tsne_test.png', 'drawn/why_test.png', 'suspects.csv',
                                                     'found.png', 'classes.csv'))


def test_the_exported_network_of_the_start_page_is_loaded_by_the_lines_of_the_pages(there):
    """Without this program, the file gives the embeddings of the index, also for a photo that lies on its side."""
    for package in ('onnx', 'onnxscript', 'onnxruntime'):
        pytest.importorskip(package, reason=f'the package {package} is not installed')
    assert follow('docs/start.md', 'Export') == ['Evaluate_Network.py']
    code, = re.findall(r'```python\n(.*?)```', section('docs/own_loop.md', 'A trained network'), re.DOTALL)
    found = {'torch': torch, 'REPO': str(ROOT)}
    exec(code.replace('160, 160', '16, 16'), found)
    assert found['embeddings'].shape == (2, 8)
    noise = torch.rand(30, 47, 3, generator=torch.Generator().manual_seed(0)).mul(255).to(torch.uint8).numpy()
    turned = Image.Exif()
    turned[274] = 6                                                                   # orientation: to the right
    Image.fromarray(noise).save('turned.png', exif=turned)
    code, = re.findall(r'```python\n(.*?)```', section('docs/start.md', 'Export'), re.DOTALL)
    code = code.replace('183', '18').replace('160', '16')                             # the sizes of SMALL
    network, transform = retrieval.load('Training_Results/folder/frozen_s1', 'cpu')
    for photo in ('photos/images/plum/1.jpg', 'turned.png'):
        exec(code.replace('photos/images/plum/1.jpg', photo), found)
        expected = retrieval.embed(network, transform, [photo]).numpy()
        assert found['embeddings'].shape == (1, 8) and abs(found['embeddings'] - expected).max() < 1e-5


def test_the_comparison_of_the_start_page(there, capsys):
    """With one of its three seeds, and few epochs."""
    small = [word for word in SMALL if word not in ('--n_epochs', '1')]
    small += ['--evaluation_metrics', 'e_recall@1', 'map_at_r']
    block, *_ = re.findall(r'```bash\n(.*?)```', section('docs/start.md', 'Compare'), re.DOTALL)
    loop = block.partition('python Launch_Runs.py')[0].replace('0 1 2', '0').replace('--n_epochs 10', '--n_epochs 1')
    loop = loop.replace('linear.yaml"', 'linear.yaml --n_epochs 2"')
    subprocess.run(['bash', '-c', loop], check=True)
    assert follow('docs/start.md', 'Compare', small=small) == ['Launch_Runs.py', 'Result_Evaluations.py', 'main.py']
    found = re.search(r'before .*\d.*\n.*frozen .*\d.*\n.*tuned .*\d', capsys.readouterr().out)
    assert found and any((there / 'figures').iterdir())
    last = [rows_of(there / 'Comparison' / 'folder' / f'{group}_s0')[-1]['epoch'] for group in ('before', 'frozen')]
    assert last == ['0', '2']


def test_the_numbers_of_parts_in_the_pages_are_those_of_the_registries():
    registries = {'losses': criteria.CRITERIA, 'miners': batch_mining.BATCHMINERS,
                  'batch samplers': datasampler.SAMPLERS}
    numbers = [str(len(published(registry))) for registry in registries.values()]
    page = (ROOT / 'docs' / 'comparison.md').read_text()
    assert [re.search(rf'\n\| {row} \| (\d+)', page)[1] for row in registries] == numbers
    assert re.findall(r'\d+', (ROOT / 'README.md').read_text().split('\n\n')[1]) == numbers


def test_make_compare_executes_the_two_commands_of_the_page():
    line, = [line for line in blocks('README.md', 'bash') if line.startswith('make compare')]
    done = subprocess.run([*shlex.split(line), '-n', '--no-print-directory'], cwd=ROOT, capture_output=True, text=True,
                          check=True)
    made = [shlex.split(line)[1:] for line in done.stdout.splitlines() if re.search(r'python (Launch|Result)_', line)]
    launch, table = commands(section('docs/result_evaluations.md', 'Compare two methods'))
    assert made == [launch, [word for word in table if word != 'e_recall@1']]
    assert '--latex table.tex --csv table.csv' in done.stdout.splitlines()[-1]
    parsed = Result_Evaluations.build().parse_args([*made[1][1:], '--latex', 'table.tex', '--csv', 'table.csv'])
    assert (parsed.latex, parsed.csv) == ('table.tex', 'table.csv')


def test_the_run_with_views(there):
    assert follow('docs/metrics.md', 'Views') == ['main.py']


def test_the_runs_of_the_readme(tmp_path, monkeypatch):
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('sys.argv', ['main.py'])
    program, *first = next(commands((ROOT / 'README.md').read_text()))
    assert program == 'main.py' and main.main([*first, *SMALL]) == 0
    run_of_script = ['--dataset', 'cub200', '--source_path', 'Datasets', '--group', 'CUB_Npair', '--seed', '0']
    assert main.main([*run_of_script, *SMALL]) == 0                            # --dry_run trains none
    done = follow('README.md', 'Runs', '--dry_run')
    assert done == ['Launch_Runs.py', 'Result_Evaluations.py', 'main.py']
    assert re.search(r'^Npair & \d', (tmp_path / 'table.tex').read_text(), re.MULTILINE)
