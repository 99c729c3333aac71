"""
A plain training loop: forward, loss, backward, step of Adam, on a random batch in memory, with PyTorch's default
settings. benchmarks.step compares main.py's step with it.

python -m benchmarks.bare_loop [FLAG ...]      # flags of main.py; prints [seconds per step, peak MiB] as JSON
"""
import json
import sys

import torch

import architectures
import batch_mining
import configuration
import criteria
from benchmarks import step
from utilities.image_size import sides


def main(flags):
    opt = configuration.parse(step.with_defaults(flags))
    opt.device = torch.device('cuda' if step.on_gpu(flags) else 'cpu')
    opt.n_classes = -(-opt.bs // 2)
    model = architectures.select(opt).to(opt.device)
    model.start_epoch(model.warmup + 1)
    criterion = criteria.select(opt, batch_mining.select(opt)).to(opt.device)
    trained = [parameter for module in (model, criterion) for parameter in module.parameters()]
    optimizer = torch.optim.Adam(trained, lr=opt.lr, weight_decay=opt.decay)
    images = torch.rand(opt.bs, 3, *sides(model.input_size), device=opt.device)
    labels = (torch.arange(opt.bs) // 2).to(opt.device)

    def train():
        embeddings, features = model(images)
        loss = criterion(batch=embeddings, labels=labels, batch_features=features, f_embed=model.f_embed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    seconds = step.measure({'bare loop': train})['bare loop']
    print(json.dumps([seconds, step.memory(train, opt.device)]))


if __name__ == '__main__':
    main(sys.argv[1:])
