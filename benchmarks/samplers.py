"""
Time of drawing a batch per sampler, and of updating the storage, at the sizes of CUB-200-2011 and Stanford Online
Products.

python -m benchmarks.samplers
"""
import argparse
import time
from statistics import median

import torch

import datasampler
import parameters
from utilities import device

# Training images and classes; the classes are made equally large but for the rest, and of 12 super-classes.
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
    """On the CPU the process's own time, which other programs do not change; on a GPU, the time until it is done."""
    on_gpu = opt.device.type == 'cuda'
    clock = time.perf_counter if on_gpu else time.process_time
    began = clock()
    result = function()
    if on_gpu:
        torch.cuda.synchronize()
    return (clock() - began) * 1e3, result


def measure(opt, name, images):
    """Per batch, in milliseconds: drawing an epoch, and updating the storage (None without one)."""
    opt.data_sampler = name
    sampler = datasampler.select(opt, images)
    n_images = len(images.image_list)
    embeddings = torch.nn.functional.normalize(torch.randn(n_images, opt.embed_dim, device=opt.device), dim=1)
    datasampler.fill_storage(sampler, lambda: embeddings)
    drawing, updating = [], []
    for epoch in range(ROUNDS + 1):
        sampler.set_epoch(epoch)
        spent, batches = milliseconds(opt, lambda: list(sampler))
        drawing.append(spent / len(batches))
        indices = torch.tensor(batches[0])
        batch = embeddings[indices]
        updating.append(milliseconds(opt, lambda: datasampler.update_storage(sampler, batch, indices))[0])  # noqa: B023
    return median(drawing[1:]), median(updating[1:]) if hasattr(sampler, 'storage') else None


def main():
    opt = parameters.parse([])
    opt.device = device.select(opt)
    torch.set_num_threads(1)
    print(f'torch {torch.__version__}, {opt.device}, 1 thread, bs {opt.bs}, samples_per_class {opt.samples_per_class}, '
          f'big batch {opt.data_batchmatch_bigbs}, {opt.data_batchmatch_ncomps} candidates, median of {ROUNDS} epochs')
    print(f'{"ms a batch":<22}' + ''.join(f'{name:>10}' for name in CASES))
    for name in datasampler.SAMPLERS:
        columns = []
        for n_images, n_classes in CASES.values():
            opt.iterations_per_epoch = 0 if name == 'balanced' else 20        # a covering is drawn as a whole
            columns.append(measure(opt, name, images_of(n_images, n_classes))[0])
        print(f'{name:<22}' + ''.join(f'{value:>10.2f}' for value in columns), flush=True)
    update = [measure(opt, 'greedy_coreset', images_of(*case))[1] for case in CASES.values()]
    print(f'{"update of the storage":<22}' + ''.join(f'{value:>10.2f}' for value in update))
    memory = [n_images * opt.embed_dim * 4 / 1e6 for n_images, _ in CASES.values()]
    print(f'{"storage, MB":<22}' + ''.join(f'{value:>10.1f}' for value in memory) + '   twice that with --data_mb_mom')


if __name__ == '__main__':
    main()
