"""The commands and the files of the pages, as they are printed there."""
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from PIL import Image

import Evaluate_Ensemble
import Evaluate_Network
import Hyperparameter_Search
import Launch_Runs
import parameters
import Result_Evaluations
import Retrieve_Images
from launching import script
from tests.conftest import draw_classes
from tests.helpers import ROOT, rows_of
from tests.test_structure import PAGES, copied, register, run_in
from utilities import command_line

PARSERS = {module.__name__: module.build for module in (Evaluate_Ensemble, Hyperparameter_Search, Launch_Runs,
                                                        Result_Evaluations, Retrieve_Images)}


def commands(text):
    """The `python NAME.py ...` commands of a page's code blocks as lists of words, continued lines joined."""
    for language, block in re.findall(r'^ *```(\w*).*?\n(.*?)^ *```', text, re.DOTALL | re.MULTILINE):
        for line in map(str.strip, block.replace('\\\n', ' ').splitlines() if language in ('', 'bash', 'sh') else ()):
            if re.match(r'python \w+\.py ', line) and '"$@"' not in line:                 # flags of a function's caller
                yield shlex.split(re.sub(r'\$\w+', '1', line), comments=True)[1:]   # $: the variable of a loop


def test_commands_after_a_block_of_another_language_are_found():
    text = '```python\nx = 1\n```\n\n```bash\n  python main.py --fold $k \\\n    --bs 8 # 1\n```\n\n```\nnone\n```\n'
    assert [*commands(text)] == [['main.py', '--fold', '1', '--bs', '8']]


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_the_commands_of_the_pages_parse(page, monkeypatch):
    monkeypatch.chdir(ROOT)                                                     # where the files of --config are
    for program, *arguments in commands(page.read_text()):
        if program == 'main.py':
            flags = {argument[2:].split('=')[0] for argument in arguments if argument.startswith('--')}
            flags -= {'loss_softmargin_scale'}
            assert flags <= set(command_line.known_flags(parameters.build())), arguments
            elsewhere = {'resume', 'evaluate', 'reproduce', 'reproduce_results', 'start_from', 'help'}
            configs = [word for word in arguments if word.endswith('.yaml')]
            if not flags & elsewhere and 'softmargin' not in arguments and all(map(Path.exists, map(Path, configs))):
                parameters.parse(arguments)                    # the others need a folder or a file of the reader's
        elif program.removesuffix('.py') in PARSERS:           # Evaluate_Network.py: tests/retrieval/test_actions.py
            own, _ = command_line.parted(arguments)
            PARSERS[program.removesuffix('.py')]().parse_known_args(own)


def blocks(page, language):
    return re.findall(rf'```{language}\n(.*?)```', (ROOT / page).read_text(), re.DOTALL)


def test_the_three_lines_of_the_readme_give_a_loss_and_train_its_proxies():
    code, _ = blocks('README.md', 'python')
    found = {'torch': torch, 'embeddings': torch.randn(8, 128), 'labels': torch.arange(8) // 2,
             'optimizer': torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])}
    exec(code.replace('path/to/dml', str(ROOT)), found)
    found['loss'].backward()
    assert found['optimizer'].param_groups[1]['params'][0].grad.any()


def test_the_commands_of_the_tutorial_work(tmp_path, monkeypatch, run):
    """In their order, with small images and a small network; the page of `serve` has tests of its own."""
    monkeypatch.chdir(tmp_path)
    draw_classes(tmp_path / 'photos' / 'images', 20, 5, side=16)
    for path in (tmp_path / 'photos' / 'images').glob('class_00/*.png'):
        Image.open(path).save(path.with_suffix('.jpg'))
    small = ['--arch', 'conv4_normalize', '--not_pretrained', '--input_size', '16', '--n_epochs', '1', '--embed_dim',
             '8', '--kernels', '0', '--device', 'cpu', '--pictures', 'none']
    programs = {'main.py': run, 'Evaluate_Network.py': lambda *words: Evaluate_Network.main([*words]),
                'Retrieve_Images.py': lambda *words: Retrieve_Images.main([*words])}
    done = []
    for program, *words in commands((ROOT / 'docs' / 'tutorial.md').read_text()):
        if words[0] == 'serve' or words[1:2] == ['export'] or program not in programs:
            continue
        words = [word.replace('plum/1.jpg', 'class_00/1.jpg').replace('configs/', f'{ROOT}/configs/') for word in words
                 if word != 'tsne']                                                  # imports scikit-learn
        assert programs[program](*words, *(small if '--dataset' in words else [])) == 0, words
        done.append(words[0])
    assert {'suspects', 'index', 'query', '--evaluate'} <= {*done} and (tmp_path / 'found.png').exists()
    loop, = (block for block in blocks('docs/tutorial.md', 'bash') if block.startswith('for loss'))
    subprocess.run(['bash', '-c', loop.partition('python Launch_Runs.py')[0]], check=True)
    lines = script.commands('my_runs.sh')
    assert len(lines) == 9 and all(parameters.parse(line) for line in lines)


@pytest.mark.skipif(not (ROOT / '.git').exists(), reason='not a git checkout')
def test_the_six_parts_of_the_page_on_extending_train_as_printed(tmp_path):
    folder, page = copied(tmp_path / 'code'), (ROOT / 'docs' / 'extending.md').read_text()
    for path, registry, code in re.findall(
            r'\n`([\w/]+)\.py`, registered in `(\w+)`.*?```python\n(.*?)```', page, re.DOTALL):
        package, name = path.split('/')
        (folder / f'{path}.py').write_text(code)
        register(folder, package, registry, name)
    metric, entry = re.findall(r'```python\n(.*?)```', page.partition('## A metric\n')[2], re.DOTALL)[:2]
    (folder / 'evaluation' / 'first_rank.py').write_text(metric)
    metrics = folder / 'evaluation' / 'metrics.py'
    text = metrics.read_text().replace('METRICS = {\n', f'METRICS = {{\n{entry}', 1)
    metrics.write_text(text.replace('\nfrom evaluation ', '\nfrom evaluation import first_rank\nfrom evaluation ', 1))
    draw_classes(tmp_path / 'drawn', 8, 6, side=32)
    (tmp_path / 'named').mkdir()
    for path in (tmp_path / 'drawn').glob('*/*.png'):
        Image.open(path).save(tmp_path / 'named' / f'{path.parent.name}_{path.stem}.jpg')
    run_in(folder, '--dataset', 'named', '--source_path', tmp_path, '--arch', 'tiny_normalize', '--not_pretrained',
           '--data_sampler', 'neighbouring', '--data_neighbouring_step', '2', '--bs', '8', '--samples_per_class', '4',
           '--n_epochs', '1', '--embed_dim', '8', '--kernels', '0', '--device', 'cpu', '--pictures', 'none',
           '--evaluation_metrics', 'e_recall@1', 'first_rank@4', '--storage_metrics', 'first_rank@4',
           '--save_path', tmp_path / 'runs', '--group', 'loss', '--loss', 'proxies', '--batch_mining', 'none',
           then="code = code or main.main([*sys.argv[1:], '--group', 'miner', '--loss', 'triplet', "
                "'--batch_mining', 'farthest', '--miner_farthest_n_negatives', '2'])")
    for group in ('loss', 'miner'):
        last = rows_of(tmp_path / 'runs' / 'named' / f'{group}_s1')[-1]
        assert last['epoch'] == '1' and 1 <= float(last['test_first_rank@4']) <= 5
