"""utilities/device.py: freed memory is reused."""
import subprocess
import sys

import pytest

from tests.helpers import ROOT
from utilities import device

# prints the page faults of ten blocks of 32 MB, one after the other
SCRIPT = '''
import resource, sys
import numpy as np
from utilities import device
if 'keep' in sys.argv:
    device.keep_freed()
for number in range(12):
    if number == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(1 << 25, np.uint8).fill(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
'''


def faults(*arguments):
    return int(subprocess.run([sys.executable, '-c', SCRIPT, *arguments], cwd=ROOT, check=True, capture_output=True,
                              text=True).stdout)


@pytest.mark.skipif(not device.has_glibc(), reason='the thresholds are those of glibc')
def test_freed_memory_is_reused():
    pages = 10 * (1 << 25) // 4096
    n_kept = faults('keep')
    assert n_kept < pages / 10 and faults() > n_kept
