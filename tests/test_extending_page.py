"""The parts that README.md and docs/extending.md print, and parts of the public code, in a copy of the code."""
import re
import shlex
import subprocess
import sys

import pytest
from PIL import Image

from tests.conftest import draw_classes
from tests.helpers import FROM_COPY, ROOT, applied, assert_same_end, copied, executed, folder_of, rows_of
from tests.test_parity import NETWORK, RETURNED, SAMPLER
from tests.test_public_parts import MINER, TRIPLES

TESTS = ['test_structure.py', 'criteria/test_properties.py', 'criteria/test_contract.py', 'criteria/test_docs.py',
         'criteria/test_known_numbers.py', 'criteria/test_select.py', 'batch_mining/test_miners.py',
         'batch_mining/test_device.py', 'datasampler/test_samplers.py', 'datasampler/test_copied_alone.py',
         'reports/test_titles.py']
OF_REGISTRIES = ['floors and criteria', 'docs.py', 'one_for_every', 'copied_alone', 'which_samplers', 'name_data_sets',
                 'functions_of']


def with_the_parts_of_the_page(folder):
    """Puts the files that docs/extending.md prints into the copy `folder`, and registers them; returns their paths."""
    page = (ROOT / 'docs' / 'extending.md').read_text()
    parts = re.findall(r'\n`(\w+/\w+\.py)`[:;].*?```python\n(.*?)```\n\n```diff\n(.*?)```', page, re.DOTALL)
    for path, code, diff in parts:
        (folder / path).write_text(code)
        applied(diff, folder)
    return [path for path, *_ in parts]


def with_the_loss_of_the_readme(folder):
    """As with_the_parts_of_the_page; returns the path, and the arguments of the command that trains with the loss."""
    section = (ROOT / 'README.md').read_text().partition('## A custom loss\n')[2].partition('\n## ')[0]
    path, = re.findall(r'Write `(criteria/\w+\.py)`', section)
    code, = re.findall(r'```python\n(.*?)```', section, re.DOTALL)
    (folder / path).write_text(code)
    applied(*re.findall(r'```diff\n(.*?)```', section, re.DOTALL), folder)
    command, = re.findall(r'```bash\npython main.py (.*?)```', section, re.DOTALL)
    return path, shlex.split(command.replace('\\\n', ' '))


def run_in(folder, runs, then=''):
    """Runs main.py of the copy `folder` with each list of arguments, and then code in the same process."""
    code = f'{FROM_COPY}code = max(main.main(arguments) for arguments in {runs})\n{then}\nsys.exit(code)'
    code, out, errors = executed(folder.parent, code, folder)
    assert code == 0, out + errors
    return out


def test_the_parts_of_the_pages_train_as_printed_and_pass_the_tests_of_our_own(tmp_path):
    if (ROOT / 'criteria' / 'proxies.py').exists() or (ROOT / 'criteria' / 'softmargin.py').exists():
        pytest.skip('this checkout has parts of the pages already')
    folder = copied(tmp_path / 'code')
    custom, command = with_the_loss_of_the_readme(folder)
    paths = [custom, *with_the_parts_of_the_page(folder)]
    assert len(paths) == 7
    changed = [*paths, *(f'{package}/__init__.py' for package in ('criteria', 'batch_mining', 'datasampler',
                                                                   'architectures', 'datasets')),
               'evaluation/metrics.py']
    ruff = subprocess.run([sys.executable, '-m', 'ruff', 'check', '--no-cache', *changed], cwd=folder,
                          capture_output=True, text=True)
    assert ruff.returncode == 0, ruff.stdout + ruff.stderr

    draw_classes(tmp_path / 'drawn', 8, 6, side=32)
    (tmp_path / 'named').mkdir()
    for path in (tmp_path / 'drawn').glob('*/*.png'):
        Image.open(path).save(tmp_path / 'named' / f'{path.parent.name}_{path.stem}.jpg')
    small = ['--dataset', 'named', '--source_path', str(tmp_path), '--arch', 'tiny_normalize', '--not_pretrained',
             '--data_sampler', 'neighbouring', '--data_neighbouring_step', '2', '--bs', '8', '--samples_per_class',
             '4', '--n_epochs', '1', '--embed_dim', '8', '--kernels', '0', '--device', 'cpu', '--pictures', 'none',
             '--evaluation_metrics', 'e_recall@1', 'first_rank@4', '--storage_metrics', 'first_rank@4',
             '--save_path', str(tmp_path / 'runs')]
    runs = [[*command, *small, '--group', 'custom'],
            [*small, '--group', 'loss', '--loss', 'proxies', '--batch_mining', 'none'],
            [*small, '--group', 'miner', '--loss', 'triplet', '--batch_mining', 'farthest',
             '--miner_farthest_n_negatives', '2']]
    names = [path.partition('/')[2].removesuffix('.py') for path in paths]
    tests = [*(f'tests/{test}' for test in TESTS), '-k', ' or '.join([*names, *OF_REGISTRIES]), '-q',
             '-p', 'no:xdist', '-p', 'no:cacheprovider']
    out = run_in(folder, runs, f'import pytest\ncode = code or pytest.main({tests})')
    for group in ('custom', 'loss', 'miner'):
        last = rows_of(tmp_path / 'runs' / 'named' / f'{group}_s1')[-1]
        assert last['epoch'] == '1' and 1 <= float(last['test_first_rank@4']) <= 5
    assert re.search(r'\d\d passed', out) and 'failed' not in out


def register(folder, package, registry, name):
    """Adds the import and the line of the dict, as the docs say."""
    file = folder / package / '__init__.py'
    text = file.read_text()
    assert text.count(f'from {package} import (\n') == text.count(f'{registry} = {{\n') == 1
    before, start, rest = text.partition(f'from {package} import (\n')
    names, end, rest = rest.partition(')\n')
    names = sorted([*names.splitlines(keepends=True), f'    {name},\n'])
    text = before + start + ''.join(names) + end + rest
    file.write_text(text.replace(f'{registry} = {{\n', f"{registry} = {{\n    '{name}': {name},\n"))


def test_parts_of_the_public_code_are_imported_after_their_lines_in_the_registry(quick, tmp_path):
    """They import `batchminer`, which imports the miners, while criteria/ itself is being imported."""
    folder = copied(tmp_path / 'code')
    network = NETWORK.replace('{returned}', RETURNED['tuple'])
    parts = {('criteria', 'CRITERIA'): TRIPLES.replace('{convert}', 'labels.cpu().numpy()'),
             ('batch_mining', 'BATCHMINERS'): MINER, ('datasampler', 'SAMPLERS'): SAMPLER,
             ('architectures', 'ARCHITECTURES'): network}
    for (package, registry), text in parts.items():
        (folder / package / 'own_part.py').write_text(text)
        register(folder, package, registry, 'own_part')
    flags = [word for flag in ('loss', 'batch_mining', 'data_sampler', 'arch') for word in (f'--{flag}', 'own_part')]
    flags += ['--n_epochs', '1', '--evaluation_metrics', 'e_recall@1']
    run_in(folder, [[*quick, *flags, '--kernels', kernels] for kernels in ('0', '2')])
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'quick_s1_1'))
