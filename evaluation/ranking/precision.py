"""Keeps float32's digits: moves and scales points to an origin and unit that lose none; ranks stay the same."""
import math

import torch
import torch.nn.functional as F

ROWS = 1024                  # embeddings that are held in float64 at a time


def wide(points):
    """The points in float64, on the CPU if the device has no float64."""
    return (points.cpu() if points.device.type == 'mps' else points).double()


def around_their_mean(*sets):
    """
    Centres and scales points so that float32 keeps their digits: returns a function that subtracts the mean of `sets`,
    tensors [N, D], from points [n, D], and divides them so that the mean squared norm of the sets is about 1, in
    float64, and rounds to `dtype`. Otherwise float32 scores lose digits if norms are large against distances, and
    squares beyond 1e±38 are lost.

    Each component of the mean is rounded to a multiple of a power of 2, one to two standard deviations, and the unit is
    a power of 2: values of few digits keep all their digits and ties, and centred points of norm 1 do not change at all
    and are not copied.
    """
    sets = [points for points in sets if len(points)]
    if not sets:
        return lambda points, dtype=torch.float32: points.to(dtype)
    n = sum(map(len, sets))
    first = wide(sets[0][:1])[0]
    total = 0
    squares = 0
    for points in sets:
        for part in points.split(ROWS):
            part = wide(part) - first
            total = total + part.sum(dim=0)
            squares = squares + part.square_().sum(dim=0)
    mean = first + total / n
    variance = (squares / n - (total / n).square()).clamp_(min=0)
    grid = variance.sqrt().log2().floor().add_(1).exp2()           # the next power of 2; 0 stays 0
    origin = torch.where(grid > 0, (mean / grid).round() * grid, mean)
    spread = float((variance + (mean - origin).square()).sum())
    unit = 2.0 ** round(math.log2(spread) / 2) if spread else 1.0

    def moved(points, dtype=torch.float32):
        if dtype == points.dtype and unit == 1 and not origin.any():
            return points                                          # no copy is needed
        device = wide(points[:0]).device if dtype == torch.float64 else points.device
        result = torch.empty(points.shape, dtype=dtype, device=device)
        for start in range(0, len(points), ROWS):
            result[start:start + ROWS] = ((wide(points[start:start + ROWS]) - origin) / unit).to(dtype)
        return result

    return moved


def on_the_sphere(points):
    """[N, D] points divided by their norms, however small or large, in float64; a zero vector stays zero."""
    return F.normalize(wide(points), dim=1, eps=1e-100)
