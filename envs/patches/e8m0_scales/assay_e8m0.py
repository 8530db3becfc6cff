"""Load scales stored as E8M0 bytes (exponent only, bias 127), by the kind of the destination.

A byte parameter keeps the byte, since its kernel decodes it. A floating parameter gets the value the
byte stands for: 2 ** (byte - 127), NaN for 255 (OCP Microscaling Formats, section 5.4.1). Copying with
the framework's own conversion does neither: it turns the byte 120 into 120.0 instead of 0.0078125.
Works on numpy arrays and on torch tensors, whichever it is given; parameters are written in place.
"""

BIAS = 127
NOT_A_NUMBER = 255


def _is_torch(tensor):
    return type(tensor).__module__.split(".")[0] == "torch"


def _bytes_of(stored):
    """The stored bytes as unsigned integers: of a byte tensor itself, of a one-byte float its bits."""
    if _is_torch(stored):
        import torch

        return stored if stored.dtype == torch.uint8 else stored.view(torch.uint8)
    import numpy

    return stored if stored.dtype == numpy.uint8 else stored.view(numpy.uint8)


def decode_e8m0(stored):
    """The float32 values of E8M0 bytes; exact, since each is a power of two (2**-127 is subnormal)."""
    raw = _bytes_of(stored)
    if _is_torch(stored):
        import torch

        values = torch.ldexp(torch.ones_like(raw, dtype=torch.float64), raw.to(torch.int32) - BIAS)
        values[raw == NOT_A_NUMBER] = float("nan")
        return values.to(torch.float32)
    import numpy

    values = numpy.ldexp(numpy.ones(raw.shape), raw.astype(numpy.int32) - BIAS)
    values[raw == NOT_A_NUMBER] = numpy.nan
    return values.astype(numpy.float32)


def load_scale(parameter, stored):
    """Write ``stored`` E8M0 scales into ``parameter`` by the parameter's type; shapes must be equal.

    Raises ValueError for another shape, TypeError for a parameter that is neither bytes nor floating.
    """
    if tuple(parameter.shape) != tuple(stored.shape):
        raise ValueError(f"parameter has shape {tuple(parameter.shape)}, stored {tuple(stored.shape)}")
    kind = str(parameter.dtype)
    if "e8m0" in kind or kind.endswith("uint8"):
        target, source = _bytes_of(parameter), _bytes_of(stored)
    elif "float" in kind:
        target, source = parameter, decode_e8m0(stored)
    else:
        raise TypeError(f"a scale parameter of type {kind} is neither bytes nor floating")
    if _is_torch(parameter):
        import torch

        with torch.no_grad():
            target.copy_(source)
    else:
        target[...] = source.astype(target.dtype)
