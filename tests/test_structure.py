"""House rules that a machine can check: who imports whom, what runs without optional packages, what the docs say."""
import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import criteria
import parameters
from utilities import command_line

ROOT = Path(__file__).parents[1]
PACKAGES = {'criteria', 'batch_mining', 'datasampler', 'architectures', 'datasets', 'evaluation'}
RUNS = {'parameters', 'parts', 'optimization', 'batchminer'}
OF_MANY_RUNS = {'reports', 'launching', 'tuning'}
SCRIPTS = {path.stem for path in ROOT.glob('*.py')} - RUNS
FLOORS = [{'utilities'}, PACKAGES, RUNS, OF_MANY_RUNS, SCRIPTS]             # each may import those before it
BESIDE = {'tuning': {'launching'}, 'parts': {'optimization'}}        # may be imported too
SELF_CONTAINED = {'criteria', 'batch_mining'}
OPTIONAL = ('wandb', 'faiss', 'pretrainedmodels', 'timm', 'tensorboard', 'comet_ml')
SOURCES = {path: name for name in set().union(*FLOORS)
           for path in [ROOT / f'{name}.py', *sorted((ROOT / name).glob('*.py'))] if path.exists()}
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]


def imports(path):
    """The top-level names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split('.')[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split('.')[0]


@pytest.mark.parametrize('path', sorted(SOURCES), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_import_from_the_floors_below_and_no_others_from_their_own(path):
    name, found = SOURCES[path], set(imports(path))
    floor, = (i for i, floor in enumerate(FLOORS) if name in floor)
    allowed = {name} | BESIDE.get(name, set())
    assert not found & (set().union(*FLOORS[floor:]) - allowed)
    if name in SELF_CONTAINED and path.name != '__init__.py':
        assert found <= {'torch'} | set(sys.stdlib_module_names)
        assert path.stem not in sys.stdlib_module_names


def test_every_folder_of_code_has_its_floor():
    folders = {path.parent.name for path in ROOT.glob('*/*.py')}
    assert folders <= set().union(*FLOORS) | {'tests', 'benchmarks', 'toy_experiments'}


def test_a_run_needs_none_of_the_optional_packages(quick):
    blocked = '; '.join(f'sys.modules[{name!r}] = None' for name in OPTIONAL)
    hidden = ('import importlib.util as u; f = u.find_spec; '
              f'u.find_spec = lambda name, *more: None if name in {OPTIONAL} else f(name, *more)')
    script = f'import sys; {blocked}; {hidden}; import main; sys.exit(main.main(sys.argv[1:]))'
    done = subprocess.run([sys.executable, '-c', script, *quick], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def commands(text):
    """The `python main.py ...` commands of a page's code blocks, continued lines joined."""
    for block in re.findall(r'```(?:bash|sh)?\n(.*?)```', text, re.DOTALL):
        for line in block.replace('\\\n', ' ').splitlines():
            if line.startswith('python main.py'):
                yield line


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_the_commands_of_the_docs_parse(page):
    for command in commands(page.read_text()):
        arguments = shlex.split(command, comments=True)[2:]
        flags = {argument[2:].split('=')[0] for argument in arguments if argument.startswith('--')}
        flags -= {'loss_softmargin_scale'}
        assert flags <= set(command_line.known_flags(parameters.build()))
        elsewhere = {'resume', 'evaluate', 'embed', 'draw', 'reproduce', 'config', 'help'}
        if not flags & elsewhere and 'softmargin' not in arguments:
            parameters.parse(arguments)                    # the others need a folder or a file of the reader's


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r'\]\(([^)#]+)[^)]*\)', page.read_text()):
        assert target.startswith('http') or (page.parent / target).exists(), target


@pytest.mark.parametrize('script', sorted(ROOT.glob('*_Runs.sh')), ids=lambda script: script.name)
def test_the_run_scripts_can_be_executed(script):
    assert os.access(script, os.X_OK)


def test_the_map_in_the_readme_names_every_file_and_folder():
    tracked = subprocess.run(['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked:
        pytest.skip('not a git checkout')
    top = {name.split('/')[0] for name in tracked} - {'.gitignore', 'README.md', '.ci'}
    text = (ROOT / 'README.md').read_text()
    assert not [name for name in top if name not in text]


def test_the_custom_loss_of_the_readme_runs(quick, run, monkeypatch, tmp_path):
    code, = (block for block in re.findall(r'```python\n(.*?)```', (ROOT / 'README.md').read_text(), re.DOTALL)
             if 'class Criterion' in block)
    (tmp_path / 'softmargin.py').write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    import softmargin
    monkeypatch.setitem(criteria.CRITERIA, 'softmargin', softmargin)
    build = parameters.build

    def with_its_flag():
        parser = build()
        parser.add_argument('--loss_softmargin_scale', type=command_line.POSITIVE, default=1.0)
        return parser

    monkeypatch.setattr(parameters, 'build', with_its_flag)
    assert run(*quick, '--loss', 'softmargin', '--batch_mining', 'semihard', '--loss_softmargin_scale', '5') == 0
