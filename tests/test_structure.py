"""House rules that a machine can check: who imports whom, what runs without optional packages, what the docs say."""
import ast
import functools
import graphlib
import os
import re
import subprocess
import sys

import pytest

from datasets import glyphs
from tests.helpers import FROM_COPY, ROOT, executed, folder_of
from utilities import plotting
from utilities.errors import UserError

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


def test_every_picture_of_the_pages_has_a_text_for_those_who_do_not_see_it():
    assert not [page.name for page in PAGES if re.search(r'!\[\s*\]\(', page.read_text())]
