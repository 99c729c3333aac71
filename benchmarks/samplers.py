"""
Time to sample a batch with each sampler, and to update the memory bank, for the sizes of CUB-200-2011 and Stanford
Online Products.

python -m benchmarks.samplers
"""
import argparse
import time
from statistics import median

import torch

import datasampler
import parameters
from benchmarks import Row
from utilities import device

# Training images and classes. The images are spread evenly over the classes, which have 12 super-classes.
CASES = {'CUB': (5_864, 100), 'SOP': (59_551, 11_318)}
ROUNDS = 7


def images_of(n_images, n_classes):
    labels = (torch.arange(n_images) * n_classes // n_images).tolist()
    image_dict = {label: [] for label in range(n_classes)}
    for index, label in enumerate(labels):
        image_dict[label].append((f'{index}.jpg', index))
    return argparse.Namespace(image_dict=image_dict, image_list=[(f'{i}.jpg', label) for i, label in enumerate(labels)],
                              superclasses=[f'{label % 12}' for label in range(n_classes)])


def milliseconds(opt, function):
    """Time of a call, and its result: on the CPU the processor time of this process, on a GPU the wall-clock time."""
    on_gpu = opt.device.type == 'cuda'
    clock = time.perf_counter if on_gpu else time.process_time
    began = clock()
    result = function()
    if on_gpu:
        torch.cuda.synchronize()
    return (clock() - began) * 1e3, result


def measure(opt, name, images):
    """Milliseconds to sample a batch, and to update the memory bank with it (None without a memory bank)."""
    opt.data_sampler = name
    sampler = datasampler.select(opt, images)
    n_images = len(images.image_list)
    embeddings = torch.nn.functional.normalize(torch.randn(n_images, opt.embed_dim, device=opt.device), dim=1)
    datasampler.fill_storage(sampler, lambda: embeddings)
    sampling, updating = [], []
    for epoch in range(ROUNDS + 1):
        sampler.set_epoch(epoch)
        spent, batches = milliseconds(opt, lambda: list(sampler))
        sampling.append(spent / len(batches))
        indices = torch.tensor(batches[0])
        batch = embeddings[indices]
        updating.append(milliseconds(opt, lambda: datasampler.update_storage(sampler, batch, indices))[0])  # noqa: B023
    return median(sampling[1:]), median(updating[1:]) if hasattr(sampler, 'storage') else None


def short():
    """Every sampler on the size of CUB-200-2011, against 10 ms."""
    torch.set_num_threads(1)
    opt = parameters.parse(['--device', 'cpu'])
    opt.device = device.select(opt)
    for name in datasampler.SAMPLERS:
        opt.iterations_per_epoch = 0 if name == 'balanced' else 20
        seconds = measure(opt, name, images_of(*CASES['CUB']))[0] / 1e3
        yield Row(f'sampler {name}, a batch of {opt.bs}; 10 ms', seconds, 0.01, 1.0)


def main():
    opt = parameters.parse([])
    opt.device = device.select(opt)
    torch.set_num_threads(1)
    print(f'torch {torch.__version__}, {opt.device}, 1 thread, bs {opt.bs}, samples_per_class {opt.samples_per_class}, '
          f'big batch {opt.data_batchmatch_bigbs}, {opt.data_batchmatch_ncomps} candidates, median of {ROUNDS} epochs')
    print(f'{"ms per batch":<22}' + ''.join(f'{name:>10}' for name in CASES))
    for name in datasampler.SAMPLERS:
        columns = []
        for n_images, n_classes in CASES.values():
            opt.iterations_per_epoch = 0 if name == 'balanced' else 20        # it samples a whole pass over all images
            columns.append(measure(opt, name, images_of(n_images, n_classes))[0])
        print(f'{name:<22}' + ''.join(f'{value:>10.2f}' for value in columns), flush=True)
    update = [measure(opt, 'greedy_coreset', images_of(*case))[1] for case in CASES.values()]
    print(f'{"memory bank, update":<22}' + ''.join(f'{value:>10.2f}' for value in update))
    memory = [n_images * opt.embed_dim * 4 / 1e6 for n_images, _ in CASES.values()]
    print(f'{"memory bank, MB":<22}' + ''.join(f'{value:>10.1f}' for value in memory) + '   twice with --data_mb_mom')


if __name__ == '__main__':
    main()
