"""
Processor time and memory of `Evaluate_Network.py RUN codes`, with the codes alone and with re-scoring, on synthetic
embeddings: a mean of five images per class, recall at 1 about 0.53. Product quantisation and the principal components
are fitted to other embeddings, a third as many.

OMP_NUM_THREADS=1 python -m benchmarks.codes [--images 60000] [--dim 128] [--codes 128 32 int8 binary pq16]
"""
import argparse

import evaluation
from benchmarks.embeddings import embeddings
from benchmarks.measure import measure
from retrieval import codes

PER_CLASS, LARGEST, RECALL = 5, 12, 0.53


def main(arguments):
    parser = argparse.ArgumentParser(prog='benchmarks.codes', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--images', type=int, default=60_000, help='number of images')
    parser.add_argument('--dim', type=int, default=128, help='dimensions of the embeddings')
    parser.add_argument('--codes', nargs='+', default=['128', '32', 'int8', 'binary', 'pq16'],
                        help='as in Evaluate_Network.py RUN codes')
    options = parser.parse_args(arguments)
    points, labels, _ = embeddings(options.images, options.images // PER_CLASS, LARGEST, 0, options.dim, RECALL)
    train, *_ = embeddings(options.images // 3, options.images // 3 // PER_CLASS, LARGEST, 1, options.dim, RECALL)
    pool, rows = evaluation.Pool(points, labels), []
    print('| code | s | MB | s with re-scoring | MB |\n| --- | ---: | ---: | ---: | ---: |')
    for code in codes.build_codes(options.codes, options.dim, train.numpy(), normalize=True):
        found = []
        for n_rescored in (0, 100):
            found += measure(lambda code=code, n=n_rescored: rows.append(codes.measure(code, pool, n)))
        print(f'| {code.name} | ' + ' | '.join(f'{value:,.1f}' for value in found) + ' |', flush=True)
    print(codes.table(rows[1::2]))


if __name__ == '__main__':
    import sys
    main(sys.argv[1:])
