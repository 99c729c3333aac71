"""The files that docs/extending.md prints keep to what our own files of their kind keep to."""
import re
import subprocess
import sys

import pytest

from tests.helpers import FROM_COPY, executed
from tests.test_structure import ROOT, copied, with_the_parts_of_the_page

TESTS = ['criteria/test_properties.py', 'criteria/test_contract.py', 'criteria/test_docs.py',
         'criteria/test_known_numbers.py', 'batch_mining/test_miners.py', 'batch_mining/test_device.py',
         'datasampler/test_samplers.py', 'datasampler/test_copied_alone.py', 'reports/test_titles.py']
OF_REGISTRIES = ['docs.py', 'one_for_every', 'copied_alone', 'which_samplers', 'name_data_sets', 'functions_of']


def test_all_parts_of_the_page_together_pass_the_tests_of_our_own(tmp_path):
    if (ROOT / 'criteria' / 'proxies.py').exists():
        pytest.skip('this checkout has the parts of the page already')
    folder = copied(tmp_path / 'code')
    paths = with_the_parts_of_the_page(folder)
    assert len(paths) == 6
    changed = [*paths, *(f'{package}/__init__.py' for package in ('criteria', 'batch_mining', 'datasampler',
                                                                   'architectures', 'datasets')),
               'evaluation/metrics.py']
    ruff = subprocess.run([sys.executable, '-m', 'ruff', 'check', '--no-cache', *changed], cwd=folder,
                          capture_output=True, text=True)
    assert ruff.returncode == 0, ruff.stdout + ruff.stderr
    names = [path.partition('/')[2].removesuffix('.py') for path in paths]
    tests = [*(f'tests/{test}' for test in TESTS), '-k', ' or '.join([*names, *OF_REGISTRIES]), '-q',
             '-p', 'no:xdist', '-p', 'no:cacheprovider']
    code, out, errors = executed(tmp_path, FROM_COPY + f'import pytest\nsys.exit(pytest.main({tests}))', folder)
    assert code == 0, out + errors
    assert re.search(r'\d\d passed', out)
