"""
The costs of the study of Musgrave et al., A Metric Learning Reality Check, ECCV 2020: 14 losses, 50 trials, 4 folds, 10
reproductions, 3 data sets; in GPU-hours, memory and network traffic, for several numbers of GPUs. They are computed
from costs that were measured on one core of a processor and from assumed figures of a GPU; all of these are flags.
"""
import argparse

# data set: validation images of a fold (a quarter of the training classes), and the epochs from one evaluation to the
# next in configs/mlrc/
DATA = {'CUB200': (1466, 2), 'CARS196': (2014, 5), 'SOP': (14888, 20)}
HOUR = 3600
DAY = 24                                                  # hours


def build():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, default, help in [
            ('losses', 14, 'number of losses'), ('trials', 50, 'trials of each search'), ('folds', 4, 'folds'),
            ('reproductions', 10, 'reproductions of the best setting on every fold'),
            ('epochs', 100, 'mean number of epochs of a run (assumed)'), ('steps', 100, 'steps of an epoch'),
            ('bs', 32, 'images of a batch'), ('dim', 128, 'dimension of the embeddings'),
            ('gmac', 2.05, 'billion multiply-adds of the network per image (measured)'),
            ('parameters', 10.4, 'million parameters of the network (measured)'),
            ('activations', 44.0, 'MB that a training step keeps per image (measured)'),
            ('cpu_train', 0.15, 'seconds of a core per image of a training step (measured)'),
            ('cpu_decode', 4.4, 'ms of a core to load an image for training (measured)'),
            ('cpu_rank', 2.7, 's of a core to rank 15,000 embeddings (measured)'),
            ('gpu_tflops', 24.4, 'TFLOP/s that a GPU sustains in training (assumed: ResNet-50 at 993 images/s)'),
            ('fill', 0.5, 'fraction of that at --bs images on one GPU (assumed)'),
            ('link', 200.0, 'GB/s between GPUs of one machine (assumed)'),
            ('network', 25.0, 'GB/s between machines (assumed)'), ('latency', 50.0, 'us of a collective (assumed)'),
            ('per_machine', 8, 'GPUs of a machine')]:
        parser.add_argument(f'--{name}', type=type(default), default=default, help=help)
    parser.add_argument('--evaluated', nargs=2, type=int, metavar=('IMAGES', 'EVERY'),
                        help='print only the hours of one run on one GPU, which evaluates IMAGES every EVERY epochs')
    return parser


def run_costs(opt, n_val, eval_every, n_gpus):
    """
    The costs of one run whose batch is shared by n_gpus GPUs, and which evaluates n_val images every eval_every epochs:
    {'hours': wall time, 'GB': network traffic, 'memory': GB per GPU}.
    """
    flop = 2e9 * opt.gmac                                                     # forward pass of one image
    own = -(-opt.bs // n_gpus)
    rate = 1e12 * opt.gpu_tflops * min(1, opt.fill * own / opt.bs)            # a part of a batch fills less of a GPU
    weights = 4e6 * opt.parameters                                            # bytes of a gradient
    rows = 4 * opt.bs * (opt.dim + 1024)                                      # bytes of rows sent per batch
    n_messages = 0 if n_gpus == 1 else 4                                      # gather, scatter, reduce, broadcast
    speed = 1e9 * (opt.link if n_gpus <= opt.per_machine else opt.network)
    step = 3 * flop * own / rate + n_messages * (1e-6 * opt.latency + (weights + rows) / 2 / speed)
    n_evaluations = opt.epochs / eval_every
    evaluation = n_val * flop / (1e12 * opt.gpu_tflops) / n_gpus + opt.cpu_rank * (n_val / 15000) ** 2
    return {'hours': (opt.epochs * opt.steps * step + n_evaluations * evaluation) / HOUR,
            'GB': (n_gpus - 1) * 1e-9 * (opt.epochs * opt.steps * 2 * (weights + rows / n_gpus)
                                         + n_evaluations * 4 * opt.dim * n_val),
            'memory': 1e-9 * (4 * weights + 1e6 * opt.activations * own)}    # weights, gradient, two of the optimizer


def main():
    opt = build().parse_args()
    if opt.evaluated:
        print(f'{run_costs(opt, *opt.evaluated, 1)["hours"]:.2f} hours')
        return
    n_runs = opt.losses * opt.folds * (opt.trials + opt.reproductions)
    n_trained = n_runs * len(DATA) * opt.epochs * opt.steps * opt.bs
    print(f'{n_runs * len(DATA):,} runs, {n_trained:.3g} images in training steps; on one core '
          f'{n_trained * opt.cpu_train / HOUR / DAY / 365:.0f} years; to load them, '
          f'{n_trained * opt.cpu_decode / 1e3 / HOUR:,.0f} core-hours')
    needed = 1e12 * opt.gpu_tflops * opt.fill / (6e9 * opt.gmac)
    print(f'one GPU takes {needed:.0f} images/s, which {needed * opt.cpu_decode / 1e3:.1f} cores load\n')
    print('| GPUs | of one run | at once | GPU-hours | days | GB per GPU | TB of traffic | GB/s of traffic |')
    print('|---|---|---|---|---|---|---|---|')
    for n_gpus in (1, 8, 64):
        for n_of_run in sorted({1, min(n_gpus, opt.per_machine), n_gpus}):
            costs = [run_costs(opt, *evaluated, n_of_run) for evaluated in DATA.values()]
            hours = n_runs * sum(cost['hours'] for cost in costs)
            traffic = n_runs * sum(cost['GB'] for cost in costs)
            at_once = n_gpus // n_of_run
            print(f'| {n_gpus} | {n_of_run} | {at_once} | {hours * n_of_run:,.0f} | {hours / at_once / DAY:.1f} | '
                  f'{costs[0]["memory"]:.1f} | {traffic / 1e3:,.0f} | {traffic / (hours / at_once * HOUR):.1f} |')


if __name__ == '__main__':
    main()
