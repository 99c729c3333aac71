"""Evaluates one network: which images (protocol.py), the metrics of their embeddings (metrics.py), and pictures."""
from evaluation import curves, geometry, ranking, why
from evaluation.embedding import embed, embed_batch, features_suffice, network_outputs, pooled_features
from evaluation.metrics import METRICS, Pool, compute, parse
from evaluation.pictures import PICTURES, draw
from evaluation.protocol import (
    as_evaluated,
    check_data,
    check_metrics,
    embed_splits,
    evaluate,
    metric_and_level,
    show,
    split_of_pictures,
    splits_to_evaluate,
    storage_metrics,
    validate,
    write_embeddings,
)

__all__ = ['METRICS', 'PICTURES', 'Pool', 'as_evaluated', 'check_data', 'check_metrics', 'compute', 'curves',
           'draw', 'embed', 'embed_batch', 'embed_splits', 'evaluate', 'features_suffice',
           'geometry', 'metric_and_level', 'network_outputs', 'parse', 'pooled_features', 'ranking', 'show',
           'split_of_pictures', 'splits_to_evaluate', 'storage_metrics', 'validate', 'why',
           'write_embeddings']
