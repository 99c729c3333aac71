"""Reads --language_vectors: an .npz file with vectors of class names."""
import zipfile
import zlib

import numpy as np

from utilities.errors import UserError

SHOWN = 5                                                           # number of missing classes that a message names


def read(file, class_names, n_vectors):
    """
    The first `n_vectors` vectors of each class, float32 [C, n_vectors, D], in the order of `class_names`.

    file: an .npz file with two arrays, class_names [N] of strings and vectors [N, k, D], or [N, D] for k = 1; it may
    have further classes. Raises UserError if it cannot be read or has another form, and if it lacks one of the classes.
    """
    what = f'--language_vectors {file}'
    try:
        with np.load(file, allow_pickle=False) as arrays:
            names, vectors = arrays['class_names'], arrays['vectors']
    except OSError as error:
        raise UserError(f'{what}: {error.strerror or "not an .npz file"}') from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error):
        raise UserError(f'{what}: expected an .npz file with the arrays class_names and vectors, without pickled '
                        'objects') from None
    vectors = vectors[:, None] if vectors.ndim == 2 else vectors
    if (names.dtype.kind != 'U' or vectors.dtype.kind not in 'fiu' or vectors.ndim != 3
            or names.shape != vectors.shape[:1]):
        raise UserError(f'{what}: expected class_names, N strings, and vectors, numbers [N, k, D]; found '
                        f'{names.dtype} {list(names.shape)} and {vectors.dtype} {list(vectors.shape)}')
    rows = {name: row for row, name in enumerate(names.tolist())}
    if len(rows) < len(names):
        raise UserError(f'{what}: a class name occurs twice in class_names')
    missing = [name for name in class_names if name not in rows]
    if missing:
        more = f' and {len(missing) - SHOWN} more' if len(missing) > SHOWN else ''
        raise UserError(f'{what}: it has no vectors for {len(missing)} of the {len(class_names)} training classes: '
                        f'{", ".join(missing[:SHOWN])}{more}')
    check_number(what, vectors.shape[1], n_vectors)
    found = vectors[[rows[name] for name in class_names], :n_vectors].astype(np.float32)
    if not np.isfinite(found).all() or not found.any(axis=2).all():
        raise UserError(f'{what}: a vector is zero or has a number that is not finite')
    return found


def check_number(what, k, n_vectors):
    """Raises UserError if a file with k vectors of each class does not fit the flags."""
    if n_vectors == 1 != k:
        raise UserError(f'{what}: it has {k} vectors of each class; give --language_pseudoclass '
                        f'--language_pseudoclass_topk {k}, or a file with one vector of each class')
    if k < n_vectors:
        raise UserError(f'{what}: it has {k} vectors of each class, and --language_pseudoclass_topk is {n_vectors}')
