"""House rules that a machine can check: who imports whom, what runs without optional packages, what the docs say."""
import ast
import functools
import graphlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from datasets import glyphs
from tests.helpers import FROM_COPY, executed, folder_of, rows_of
from tests.test_parity import NETWORK, RETURNED, SAMPLER
from tests.test_public_parts import MINER, TRIPLES
from utilities import plotting
from utilities.errors import UserError

ROOT = Path(__file__).parents[1]
SELF_CONTAINED = ('criteria', 'batch_mining', 'datasampler')     # files of these folders import torch alone, except
SHARED = ('__init__', 'wrapping', 'storage')
OPTIONAL = ('wandb', 'faiss', 'pretrainedmodels', 'timm', 'tensorboard', 'comet_ml', 'onnx', 'flask', 'matplotlib',
            'scipy', 'sklearn', 'threadpoolctl', 'pandas', 'optuna', 'submitit', 'safetensors', 'waitress')
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]


def floors():
    """The floors of docs/development.md from the top: lists of names; > stands before those that a file may import."""
    diagram = (ROOT / 'docs' / 'development.md').read_text().partition('```text\nscripts')[2].partition('```')[0]
    lines = [line.split() for line in f'scripts{diagram}'.splitlines()]
    named = {name for line in lines for name in line}
    scripts = [path.stem for path in ROOT.glob('*.py') if path.stem not in named]
    return [[*scripts, *line] for line in lines[:1]] + lines[1:]


FLOORS = floors()
SCRIPTS = {name for name in FLOORS[0] if (ROOT / f'{name}.py').exists()}


def sources(name):
    return [path for path in [ROOT / f'{name}.py', *sorted((ROOT / name).rglob('*.py'))] if path.exists()]


@functools.cache
def imports(path):
    """The top-level names that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.split('.')[0] for name in names}


@pytest.mark.parametrize('name', [name for floor in FLOORS for name in floor if name not in ('>', 'scripts')])
def test_a_folder_imports_from_the_floors_below_and_files_that_are_copied_from_none(name):
    number, = (number for number, floor in enumerate(FLOORS) if name in floor)
    same = FLOORS[number]
    beside = set(same[same.index(name):]) if '>' in same else set()
    above = {other for floor in FLOORS[:number + 1] for other in floor} - beside - {name}
    assert sources(name), f'{name} of the diagram in docs/development.md does not exist'
    for path in sources(name):
        found = imports(path)
        assert not (wrong := found & above), f'{path} imports {wrong}'
        if name in SELF_CONTAINED and path.stem not in SHARED:
            assert found <= {'torch', *sys.stdlib_module_names}, path
            assert path.stem not in sys.stdlib_module_names


def test_every_folder_of_code_has_its_floor_and_there_are_at_most_eight():
    folders = {path.parent.name for path in ROOT.glob('*/*.py')}
    assert folders - {'tests'} <= {name for floor in FLOORS for name in floor} and len(FLOORS) <= 8


def test_nothing_imports_a_script():
    assert not [path for floor in FLOORS for name in floor for path in sources(name) if imports(path) & SCRIPTS]


def modules():
    """{name: file} of every module of the floors, as an import names it."""
    files = {path for floor in FLOORS for name in floor for path in sources(name)}
    return {'.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__'): path for path in files}


def imported_modules(path, known):
    """The modules among `known` that a file imports anywhere in it, but for its own package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside = {f'{node.module}.{alias.name}' for alias in node.names}
            found |= inside & known.keys() or {node.module}
    own_package = path.parent / '__init__.py'
    return {name for name in found & known.keys() if known[name] != own_package}


def test_no_files_import_each_other_in_a_circle():
    """A package's `__init__.py` may import its files, and these may import the package."""
    known = modules()
    graph = {name: imported_modules(path, known) for name, path in known.items()}
    try:
        [*graphlib.TopologicalSorter(graph).static_order()]
    except graphlib.CycleError as error:
        pytest.fail(f'a circle of imports: {" -> ".join(error.args[1])}')


def test_a_run_needs_none_of_the_optional_packages(quick, tmp_path):
    blocked = (f"import sys\nfor name in [*sys.modules]:\n    if name.split('.')[0] in {OPTIONAL}:\n"
               f"        del sys.modules[name]\nsys.modules.update(dict.fromkeys({OPTIONAL}))\n"
               'import importlib.util as u\nf = u.find_spec\n'
               f'u.find_spec = lambda name, *more: None if name in {OPTIONAL} else f(name, *more)\n')
    first = [*quick, '--n_epochs', '1', '--pictures', 'retrieval']
    resume = ['--resume', str(folder_of(tmp_path)), '--n_epochs', '2']
    code, out, errors = executed(
        tmp_path, f'{blocked}{FROM_COPY}sys.exit(main.main({first!r}) or main.main({resume!r}))', ROOT)
    assert code == 0, errors
    assert out.count('Note: matplotlib is not installed: no plots (pip install matplotlib).') == 2


def test_commands_that_draw_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    monkeypatch.setitem(sys.modules, 'matplotlib.style', None)
    with pytest.raises(UserError, match='figures need matplotlib: pip install matplotlib'):
        plotting.styled(print)()
    with pytest.raises(UserError, match='--dataset glyphs: its fonts come with matplotlib'):
        glyphs.font_files()


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r'^#+ (.*)$', page.read_text(), re.MULTILINE)
    return {re.sub(r'[^\w -]', '', heading.lower()).replace(' ', '-') for heading in headings}


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target, anchor in re.findall(r'\]\(([\w./]*)#([^)]+)\)', page.read_text()):
        assert anchor in anchors(page.parent / target if target else page), f'{target}#{anchor}'
    for target in re.findall(r'\]\(([^)#]+)[^)]*\)', page.read_text()):
        assert target.startswith('http') or (page.parent / target).exists(), target
        inside = page.parent == ROOT or (page.parent / target).resolve().is_relative_to(page.parent)
        assert target.startswith('http') or inside, f'{target} is not a page of the site'


def test_addresses_of_other_sites_are_well_formed_and_a_paper_has_one_at_each_conference():
    papers = {}
    for page in PAGES:
        for address in re.findall(r'\]\((http[^)]*)\)', page.read_text()):
            assert re.fullmatch(r'https?://[\w.-]+(:\d+)?(/[\w./-]*)?', address), f'{page.name}: {address}'
            if 'arxiv.org' in address:
                assert re.fullmatch(r'https://arxiv\.org/abs/\d{4}\.\d{5}', address), f'{page.name}: {address}'
            elif 'openaccess' in address and 'paper' in address:
                author, conference = re.search(r'/html/([A-Za-z-]+)_.*_(\w+_\d{4})_paper\.html$', address).groups()
                assert papers.setdefault((author, conference), address) == address, f'{page.name}: {address}'


@pytest.mark.parametrize('page', PAGES[1:], ids=lambda page: page.name)
def test_pages_are_short(page):
    text = re.sub('<!-- table .*?<!-- end -->', '', page.read_text(), flags=re.DOTALL)          # written by programs
    assert len(text.split()) <= 2000


@pytest.mark.parametrize('script', [*ROOT.glob('*_Runs.sh'), *ROOT.glob('*/*_Runs.sh')], ids=lambda script: script.name)
def test_the_run_scripts_can_be_executed(script):
    assert os.access(script, os.X_OK)


def test_the_map_in_the_readme_names_every_file_and_folder():
    tracked = subprocess.run(['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked:
        pytest.skip('not a git checkout')
    top = {name.split('/')[0] for name in tracked} - {'.gitignore', 'README.md', '.ci'}
    text = (ROOT / 'README.md').read_text()
    assert not [name for name in top if name not in text]


def copied(folder):
    """A copy of the files of the checkout and its folders of code and pages, compiled too: files may be added."""
    folder.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.is_file() and path.suffix:                        # not .git of a worktree
            shutil.copy2(path, folder)
        elif any(path.glob('*.py')) or any(path.glob('*.sh')) or any(path.glob('*.md')):
            shutil.copytree(path, folder / path.name)
    return folder


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


def with_the_parts_of_the_page(folder):
    """Puts the files that docs/extending.md prints into the copy `folder`, and registers them; returns their paths."""
    page = (ROOT / 'docs' / 'extending.md').read_text()
    parts = re.findall(r'\n`(\w+/\w+\.py)`[:;].*?```python\n(.*?)```\n\n```diff\n(.*?)```', page, re.DOTALL)
    for path, code, diff in parts:
        (folder / path).write_text(code)
        subprocess.run(['git', 'apply', '-'], input=diff, text=True, cwd=folder, check=True)
    return [path for path, *_ in parts]


def run_in(folder, *arguments, then=''):
    """Runs main.py of the copy `folder`, and then code in the same process."""
    code = FROM_COPY + "code = main.main(sys.argv[2:])\n" + then + '\nsys.exit(code)'
    code, out, errors = executed(folder.parent, code, folder, *arguments)
    assert code == 0, out + errors
    return out


def test_the_custom_loss_of_the_readme_followed_to_the_letter(quick, tmp_path):
    """In a copy of the code, which trains with it, and whose tests still pass."""
    if (ROOT / 'criteria' / 'softmargin.py').exists():
        pytest.skip('this checkout has the custom loss already')
    folder = copied(tmp_path / 'code')
    section = (ROOT / 'README.md').read_text().partition('## A custom loss\n')[2].partition('\n## ')[0]
    name, = re.findall(r'Write `criteria/(\w+)\.py`', section)
    code, = re.findall(r'```python\n(.*?)```', section, re.DOTALL)
    (folder / 'criteria' / f'{name}.py').write_text(code)
    diff, = re.findall(r'```diff\n(.*?)```', section, re.DOTALL)
    subprocess.run(['git', 'apply', '-'], input=diff, text=True, cwd=folder, check=True)
    command, = re.findall(r'```bash\npython main.py (.*?)```', section, re.DOTALL)
    own = shlex.split(command.replace('\\\n', ' '))
    tests = ['tests/test_structure.py', 'tests/criteria/test_docs.py', 'tests/criteria/test_known_numbers.py',
             'tests/criteria/test_select.py', '-k', 'docs.py or floors and criteria or one_for_every or softmargin',
             '-q', '-p', 'no:xdist', '-p', 'no:cacheprovider']
    out = run_in(folder, *own, *quick, '--n_epochs', '1', '--group', 'softmargin',        # a small data set and network
                 then=f'main.configuration.parse({own})\nimport pytest\ncode = code or pytest.main({tests})')
    assert (folder_of(tmp_path, 'softmargin_s1') / 'summary.json').exists()
    assert re.search(r'\d passed', out) and 'failed' not in out


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
    run_in(folder, *quick, '--n_epochs', '1', *flags)
    assert rows_of(folder_of(tmp_path))[-1]['epoch'] == '1'


def test_every_picture_of_the_pages_has_a_text_for_those_who_do_not_see_it():
    assert not [page.name for page in PAGES if re.search(r'!\[\s*\]\(', page.read_text())]


def test_git_ignores_what_the_commands_of_the_pages_write():
    """And no file of the project, also where upper and lower case are the same."""
    written = {'suspects.png', 'Ensembles/x', 'Training_Results/x', 'diagonal_lines.svg'}
    for page in PAGES:
        for block in re.findall(r'```bash\n(.*?)```', page.read_text(), re.DOTALL):
            written.update(re.findall(r'(?:--(?:out|picture|save_path|figures?|latex|csv|rows|source_path)| export|'
                                      r' pictures|>) +(?!DATA|studies/)(\w[\w./-]*)', block))
    assert {'photos', 'my_index', 'network.onnx', 'my_runs.sh', 'Datasets', 'roth.tex', 'diagonal_lines.png'} <= written
    paths = [name if '.' in name else f'{name}/x' for name in sorted(written)]
    ignored = git('check-ignore', '--no-index', *paths)
    assert not {*paths} - {*ignored}
    assert not git('ls-files', '-i', '-c', '--exclude-standard')
    assert not git('-c', 'core.ignorecase=true', 'ls-files', '-i', '-c', '--exclude-standard')


def git(*arguments):
    """The lines that git prints in the checkout."""
    done = subprocess.run(['git', *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 128:
        pytest.skip(f'git is not here, or this is not a checkout: {done.stderr}')
    return done.stdout.splitlines()
