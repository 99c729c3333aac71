"""
The device of a run, its precision, and whether its arithmetic is repeatable; what glibc does with freed memory.

By default, glibc, the C library of Linux, returns large blocks to the operating system as soon as they are freed. It
gets them back page by page, with a page fault for each 4 kB. On the CPU, this takes up to half of the time of a step
with large batches.
"""
import contextlib
import ctypes
import os
import platform
import sys
import warnings

import torch

from utilities import processes, stopping
from utilities.errors import UserError

# PyTorch's settings on NVIDIA GPUs. fp32_precision can always be read; allow_tf32, the older setting, raises
# RuntimeError in a program that has set fp32_precision.
SETTINGS = torch.backends.cudnn.conv, torch.backends.cuda.matmul, torch.backends.cudnn.rnn
TF32 = tuple(setting.fp32_precision == 'tf32' for setting in SETTINGS[:2])       # whether TF32 is used by default
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3                           # the parameters' numbers in glibc's malloc.h
KEPT = 2 ** 31 - 1                                                # bytes of freed memory that a process keeps at most
MAPPED_FROM = 2 ** 30                                             # bytes; larger blocks are returned when freed


def select(opt):
    """
    --device and --gpu -> the torch.device of this process. `auto`: an NVIDIA GPU if available, else an Apple GPU, else
    the CPU. Where a run has several processes on a machine, each takes one index of --gpu, by default its own number.
    """
    here = processes.local_count()
    indices = opt.gpu
    if (here > 1 or len(indices) > 1) and 'gpu' not in opt.given:          # --gpu may come from a run folder
        indices = range(here)
    if len(indices) != here or len(set(indices)) < here:
        are = 'is one' if here == 1 else f'are {here}'
        raise UserError(f'--gpu {" ".join(map(str, indices))}: a run uses one GPU for each of its processes, and there '
                        f'{are} on this machine')
    kind = processes.accelerator()
    if opt.device in ('auto', 'cuda') and kind:
        gpus = torch.get_device_module(kind)
        index = indices[processes.local_rank()]
        if index >= gpus.device_count() and 'gpu' not in opt.given:        # a recorded index, from more GPUs
            index = processes.local_rank()
        if index >= gpus.device_count():
            raise UserError(f'--gpu {index}: this machine has {gpus.device_count()} GPU(s), numbered from 0')
        gpus.set_device(index)            # NCCL, pinned memory and compiled kernels need it
        return torch.device(kind, index)
    if opt.device == 'mps' and processes.connected():
        raise UserError('--device mps: Apple GPUs cannot be connected; start one process, or take --device cpu')
    if opt.device in ('auto', 'mps') and not processes.connected() and torch.backends.mps.is_available():
        return torch.device('mps')
    if opt.device in ('cuda', 'mps'):
        raise UserError(f'--device {opt.device}: not available in this PyTorch or on this machine; use auto or cpu')
    if opt.device == 'auto':
        print('No GPU found: running on the CPU.', file=sys.stderr)
    return torch.device('cpu')


def is_gpu(device):
    """Whether a torch.device is one of the GPUs that --device cuda means: NVIDIA GPUs, or an accelerator like them."""
    return device.type not in ('cpu', 'mps')


def set_arithmetic(opt):
    """
    Makes arithmetic repeatable: always on the CPU, where it costs no time, and with --deterministic on a GPU. Sets the
    precision of float32 on NVIDIA GPUs to that of --tf32, by default PyTorch's own: convolutions in TF32.
    """
    deterministic = opt.deterministic or opt.device.type == 'cpu'
    if deterministic and is_gpu(opt.device):
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = not deterministic
    if opt.tf32 is None:
        set_tf32(*TF32)
    else:
        set_tf32(opt.tf32, opt.tf32)


def set_tf32(of_convolutions, of_products):
    """Whether NVIDIA GPUs compute float32 convolutions, and products of matrices, in TF32."""
    # these settings also set fp32_precision; torch.compile reads both
    torch.backends.cudnn.allow_tf32 = of_convolutions
    torch.backends.cuda.matmul.allow_tf32 = of_products


def allowed_tf32():
    """The older settings of convolutions and of products; False where the program has set the newer ones."""
    found = []
    for backend in torch.backends.cudnn, torch.backends.cuda.matmul:
        try:
            found.append(backend.allow_tf32)
        except RuntimeError:
            found.append(False)
    return found


@contextlib.contextmanager
def full_float32():
    """In the block, float32 is computed in full precision, also on NVIDIA GPUs, whatever --tf32 says."""
    before = [setting.fp32_precision for setting in SETTINGS]
    older = allowed_tf32()
    try:
        set_tf32(False, False)                # a loss may read the older settings
        for setting in SETTINGS:
            if setting.fp32_precision == 'tf32':                       # from torch.backends.fp32_precision
                setting.fp32_precision = 'ieee'
        yield
    finally:
        set_tf32(*older)
        for setting, precision in zip(SETTINGS, before, strict=True):
            setting.fp32_precision = precision


def check_step(opt):
    """Raises UserError if the device does not support the type of --amp, or if --compile does not work."""
    if opt.compile:
        check_compiler(opt.device)
    if opt.amp == 'none':
        return
    try:
        with warnings.catch_warnings(action='ignore'), torch.autocast(opt.device.type, getattr(torch, opt.amp)):
            supported = torch.is_autocast_enabled(opt.device.type)
    except RuntimeError:
        supported = False
    if not supported:
        raise UserError(f'--amp {opt.amp}: not available on this device ({opt.device}); leave the flag out or choose '
                        'the other type')


def check_compiler(device):
    """Raises UserError if torch.compile does not work, as without a C++ compiler or, on a GPU, without Triton."""
    try:
        with stopping.compiling():
            torch.compile(lambda x: x.sin() + 1)(torch.zeros(8, device=device))
    except Exception as error:                       # the compiler, Triton and torch raise errors of no common class
        reason = ' '.join(str(error).split())[:200]
        raise UserError(f'--compile: torch.compile does not work on this machine ({reason}); install a C++ compiler '
                        '(g++ or clang), on a GPU also Triton, or leave the flag out') from None


def keep_freed():
    """Makes this process and its forked data workers keep freed memory, with glibc."""
    if sys.platform == 'linux' and platform.libc_ver()[0] == 'glibc':
        library = ctypes.CDLL(None)
        library.mallopt(TRIM_THRESHOLD, KEPT)
        library.mallopt(MMAP_THRESHOLD, MAPPED_FROM)
