"""How many masters have their float32 values at the same time, at ``store_param_remainders=True``."""

#: Masters that have values at the same time: at most this share of the optimizer's, within these numbers of elements.
SHARE = 64


FEWEST, MOST = 1 << 17, 1 << 24


def chunks_of_sizes(sizes):
    """Return which masters have their values at the same time, as lists of indices: small ones first.

    Args:
        sizes: their numbers of elements.
    """
    limit = min(max(sum(sizes) // SHARE, FEWEST), MOST)
    chunks, held = [], 0
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        if not chunks or held + sizes[index] > limit:
            chunks.append([])
            held = 0
        chunks[-1].append(index)
        held += sizes[index]
    return chunks
