"""
Parameters of pretrained backbones and the memory of a training step: all parameters trained, a linear layer on the
frozen backbone, low-rank adapters, prompts. Both are calculated without weights and without a GPU: the step runs on
fake tensors, which have shapes and types but no data.

python -m benchmarks.backbones [--bs N] [NAME:SIZE ...]
"""
import argparse
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import architectures
import configuration
from utilities.text_tables import markdown

CASES = ('vit_small_patch14_dinov2:224', 'vit_base_patch14_dinov2:224', 'vit_small_patch16_dinov3:224',
         'vit_base_patch16_dinov3:224', 'vit_large_patch16_dinov3:224', 'vit_base_patch16_siglip_224:224',
         'vit_base_patch32_clip_quickgelu_224:224', 'vit_large_patch14_clip_quickgelu_224:224',
         'swin_large_patch4_window12_384:384')
ADAPTATIONS = {'all': [], 'linear': ['--freeze', 'backbone'], 'LoRA': ['--lora_rank', '8'],
               'prompts': ['--visual_prompts', '10']}


class Peak(TorchDispatchMode):
    """The largest number of bytes of the tensors that are alive at once, from the given ones on, in `bytes`."""

    def __init__(self, tensors):
        super().__init__()
        self.alive, self.now, self.bytes = {}, 0, 0
        self.count(tensors)

    def count(self, tensors):
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata                                      # the memory, which several tensors may share
            if key not in self.alive:
                self.alive[key] = weakref.finalize(storage, self.free, key, storage.nbytes())
                self.now += storage.nbytes()
        self.bytes = max(self.bytes, self.now)

    def free(self, key, n_bytes):
        del self.alive[key]
        self.now -= n_bytes

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **kwargs or {})
        self.count(part for part in tree_leaves(made) if isinstance(part, torch.Tensor))
        return made


def step(arch, size, n_images, flags=(), amp=True):
    """
    (number of parameters, number of trained parameters, peak bytes of all tensors in a training step of n_images with
    Adam); with amp, under autocast to bfloat16. What an operation allocates inside, and what the allocator keeps in
    reserve, is not included.
    """
    opt = configuration.parse(['--arch', arch, '--not_pretrained', '--embed_dim', '256', '--input_size',
                             str(size), *flags])
    with torch.device('meta'):                         # networks are built there, since some read numbers meanwhile
        model = architectures.select(opt)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device='cpu').start_epoch(1)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer, images = torch.optim.Adam(trained, foreach=False), torch.rand(n_images, 3, size, size)
        peak = Peak([*model.parameters(), *model.buffers(), images])
        with peak:
            for _ in range(2):                                                     # the second has Adam's moments
                optimizer.zero_grad()
                with torch.autocast('cpu', torch.bfloat16, enabled=amp):
                    embeddings, _ = model(images)
                embeddings.float().pow(2).sum().backward()
                optimizer.step()
        return sum(map(torch.numel, model.parameters())), sum(map(torch.numel, trained)), peak.bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('cases', nargs='*', default=CASES, metavar='NAME:SIZE', help='networks of timm, size of images')
    parser.add_argument('--bs', type=int, default=128, help='images of a batch')
    given, rows = parser.parse_args(), []
    for name, size in (case.rsplit(':', 1) for case in given.cases):
        cells = []
        for adaptation, flags in ADAPTATIONS.items():
            if adaptation == 'prompts' and not name.startswith(('vit', 'eva')):
                cells += ['', '']
                continue
            n_parameters, n_trained, n_bytes = step(f'timm:{name}_normalize', int(size), given.bs, flags)
            cells += [f'{n_trained / 1e6:.2f}', f'{n_bytes / 2**30:.1f}']
        rows.append([name, size, *cells])
    print(f'trained parameters in millions, GiB of a step of {given.bs} images with --amp bfloat16 and Adam')
    print(markdown(['network', 'size', *(head for name in ADAPTATIONS for head in (f'{name}, M', 'GiB'))], rows))


if __name__ == '__main__':
    main()
