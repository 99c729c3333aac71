"""What the tests of Launch_Runs.py share."""
import shlex

import pytest

from tests.tuning.conftest import flags, stub  # noqa: F401  fixtures of searches


@pytest.fixture
def script(quick, tmp_path):
    """script([flags], ...): a file of quick runs named r_s0, r_s1 ..., with these flags each."""
    def write(*lines):
        commands = [shlex.join(['python', 'main.py', *quick, '--group', 'r', '--seed', str(seed), *line])
                    for seed, line in enumerate(lines)]
        (tmp_path / 'runs.sh').write_text('\n'.join(commands) + '\n')
        return str(tmp_path / 'runs.sh')
    return write
