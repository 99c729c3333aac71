"""utilities/device.py: freed memory is reused; programs that set PyTorch's precision themselves."""
import platform
import subprocess
import sys

import pytest

from tests.helpers import ROOT

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

# argv[1]: what the program sets before it imports this one
CALLER = '''
import sys
import torch
exec(sys.argv[1])
import hubconf
import retrieval
from utilities import device

def precisions():
    return [torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision,
            torch.backends.cudnn.rnn.fp32_precision, torch.backends.fp32_precision]

before = precisions()
hubconf.metrics('map_at_r')(torch.rand(8, 4), torch.arange(8) // 2)
with device.full_float32():
    assert 'tf32' not in precisions()[:3], precisions()
assert precisions() == before, precisions()
if 'fp32' not in sys.argv[1]:
    with device.full_float32(), torch.backends.cudnn.flags(enabled=False):                 # reads the older settings
        pass
'''


def faults(*arguments):
    return int(subprocess.run([sys.executable, '-c', SCRIPT, *arguments], cwd=ROOT, check=True, capture_output=True,
                              text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='the thresholds are those of glibc')
def test_freed_memory_is_reused():
    pages = 10 * (1 << 25) // 4096
    n_kept = faults('keep')
    assert n_kept < pages / 10 and faults() > n_kept


@pytest.mark.parametrize('setting', [
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'; torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "torch.backends.fp32_precision = 'tf32'", 'torch.backends.cuda.matmul.allow_tf32 = True'])
def test_the_newer_settings_of_a_program_are_kept(setting):
    done = subprocess.run([sys.executable, '-c', CALLER, setting], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
