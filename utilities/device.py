"""Which device a run computes on, and how repeatable its arithmetic is."""
import os

import torch

from utilities.errors import UserError


def select(opt):
    """--device and --gpu -> torch.device. `auto`: the GPU --gpu if there is one, else Apple's, else the CPU."""
    if len(opt.gpu) > 1:
        raise UserError(f'--gpu {" ".join(map(str, opt.gpu))}: a run uses one GPU; give one index, start a run per GPU')
    if opt.device in ('auto', 'cuda') and torch.cuda.is_available():
        if opt.gpu[0] >= torch.cuda.device_count():
            raise UserError(f'--gpu {opt.gpu[0]}: this machine has {torch.cuda.device_count()} GPU(s), counted from 0')
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
    Repeatable arithmetic: always on the CPU, where it costs nothing, and on a GPU with --deterministic.
    Float32 stays float32, also in cuDNN's convolutions, unless --tf32 trades digits for speed.
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
