"""
Processor time of a training step and of an embedding pass per network: channels last compared with channels first.

python -m benchmarks.networks
"""
import time
from statistics import median

import torch

import architectures
import parameters
from benchmarks import Row

CASES = (('conv4', 32, 112), ('mobilenet_v2', 128, 56), ('resnet50', 128, 16))      # network, image side, batch size
ROUNDS = 9


def seconds(function, *arguments):
    began = time.process_time()
    function(*arguments)
    return time.process_time() - began


def build(arch, size, memory_format):
    torch.manual_seed(0)
    opt = parameters.parse(['--arch', arch, '--not_pretrained', '--input_size', str(size)])
    model = architectures.select(opt).to(memory_format=memory_format)
    return model, torch.optim.Adam(model.parameters())


def train(model, optimizer, images):
    model.train()
    optimizer.zero_grad()
    model(images)[0].pow(2).sum().backward()
    optimizer.step()


@torch.inference_mode()
def embed(model, images):
    model.eval()(images)


def measure(arch, size, n_images, rounds=ROUNDS):
    """Median seconds of a training step and of an embedding pass, each as (channels first, channels last)."""
    images = torch.rand(n_images, 3, size, size)
    networks = [build(arch, size, layout) for layout in (torch.contiguous_format, torch.channels_last)]
    steps, passes = ([], []), ([], [])
    for _ in range(rounds):
        for i, (model, optimizer) in enumerate(networks):
            steps[i].append(seconds(train, model, optimizer, images))
            passes[i].append(seconds(embed, model, images))
    return map(median, steps), map(median, passes)


def short():
    """The two small networks."""
    for arch, size, n_images in CASES[:2]:
        (first, last), (first_pass, last_pass) = measure(arch, size, n_images, rounds=5)
        job = f'{arch}, {n_images} images of {size} pixels'
        yield Row(f'training step, {job}; channels first', last, first, 1.0)
        yield Row(f'embedding, {job}; channels first', last_pass, first_pass, 1.0)


def main():
    print(f'torch {torch.__version__}, {torch.get_num_threads()} threads, median of {ROUNDS} interleaved rounds')
    print(f'{"network":<14}{"step, ms":>18}{"ratio":>8}{"embedding, ms":>20}{"ratio":>8}')
    for arch, size, n_images in CASES:
        (first, last), (first_pass, last_pass) = measure(arch, size, n_images)
        print(f'{arch:<14}{first * 1e3:>8.0f} -> {last * 1e3:>5.0f}{last / first:>8.2f}'
              f'{first_pass * 1e3:>10.0f} -> {last_pass * 1e3:>5.0f}{last_pass / first_pass:>8.2f}')


if __name__ == '__main__':
    main()
