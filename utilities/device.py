"""The device of a run, and whether its arithmetic is repeatable."""
import os

import torch

from utilities.errors import UserError


def select(opt):
    """--device and --gpu -> torch.device. `auto`: an NVIDIA GPU if available, else an Apple GPU, else the CPU."""
    if len(opt.gpu) > 1:
        raise UserError(f'--gpu {" ".join(map(str, opt.gpu))}: a run uses one GPU; give one index per run')
    if opt.device in ('auto', 'cuda') and torch.cuda.is_available():
        if opt.gpu[0] >= torch.cuda.device_count():
            raise UserError(f'--gpu {opt.gpu[0]}: this machine has {torch.cuda.device_count()} GPU(s), numbered from 0')
        return torch.device('cuda', opt.gpu[0])
    if opt.device in ('auto', 'mps') and torch.backends.mps.is_available():
        return torch.device('mps')
    if opt.device in ('cuda', 'mps'):
        raise UserError(f'--device {opt.device}: not available in this PyTorch or on this machine; use auto or cpu')
    if opt.device == 'auto':
        print('No GPU found: running on the CPU.')
    return torch.device('cpu')


def set_arithmetic(opt):
    """
    Makes arithmetic repeatable: always on the CPU, where it costs no time, and with --deterministic on a GPU.
    Float32 is computed in full precision, also in cuDNN's convolutions, unless --tf32 trades precision for speed.
    """
    deterministic = opt.deterministic or opt.device.type == 'cpu'
    if deterministic and opt.device.type == 'cuda':
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.allow_tf32 = opt.tf32
    torch.backends.cuda.matmul.allow_tf32 = opt.tf32
