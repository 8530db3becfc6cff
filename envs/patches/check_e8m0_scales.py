"""Does an engine's weight loader treat E8M0 scales right? Run inside an image as its last build step.

    python check_e8m0_scales.py --loader MODULE:FUNCTION [--check decoding|destination]

``decoding``: a floating parameter gets the value of each byte; 120 is 2**-7 = 0.0078125 and never 120.0.
``destination``: a byte parameter keeps the byte, a floating parameter of the same scale gets the value.
Both for dense scales, experts' scales and the draft head's. FUNCTION(parameter, stored) writes into the
parameter, as weight loaders of engines do; one with an argument ``name`` is told the tensor's name.
With torch the tensors are torch's (stored as uint8 and, where torch has it, as float8_e8m0fnu), else numpy's.
Exit code 0: right; 1: wrong, with one line a fault; 77: could not be tried.
"""

import argparse
import importlib
import inspect
import math
import sys

SCALE_NAMES = {
    "dense": [
        "model.layers.0.self_attn.q_a_proj.weight_scale_inv",
        "model.layers.0.self_attn.o_proj.weight_scale",
        "model.layers.0.mlp.gate_up_proj.weight_scale_inv",
        "model.layers.2.mlp.shared_experts.down_proj.scale",
    ],
    "experts": [
        "model.layers.3.mlp.experts.7.w1.weight_scale",
        "model.layers.3.mlp.experts.w13_weight_scale",
        "model.layers.3.mlp.experts.w2_weight_scale_inv",
    ],
    "draft_head": [
        "mtp.0.eh_proj.weight_scale_inv",
        "mtp.0.mlp.experts.5.w2.weight_scale",
        "model.layers.61.mlp.experts.w13_weight_scale",
    ],
}
# 127 is 1.0; 0 and 254 are the ends of the range; 255 is NaN. Each is told apart from every wrong reading.
BYTES = [120, 127, 128, 119, 1, 0, 254, 255]
COULD_NOT_RUN = 77


def value_of(byte):
    """The number an E8M0 byte stands for, by the standard's definition."""
    return math.nan if byte == 255 else math.ldexp(1.0, byte - 127)


def make_backend():
    """(name, stored tensors by kind, makers of byte parameters, of floating parameters, reader to a list)."""
    try:
        import torch
    except ImportError:
        import numpy

        raw = numpy.array(BYTES, dtype=numpy.uint8).reshape(2, -1)
        return (
            "numpy",
            {"uint8": raw},
            {"uint8": lambda: numpy.full(raw.shape, 3, dtype=numpy.uint8)},
            {"float32": lambda: numpy.full(raw.shape, -1.0, dtype=numpy.float32)},
            lambda tensor: tensor.reshape(-1).tolist(),
            lambda tensor: tensor.view(numpy.uint8).reshape(-1).tolist(),
        )
    raw = torch.tensor(BYTES, dtype=torch.uint8).reshape(2, -1)
    stored = {"uint8": raw}
    byte_parameters = {"uint8": lambda: torch.full(raw.shape, 3, dtype=torch.uint8)}
    e8m0 = getattr(torch, "float8_e8m0fnu", None)
    if e8m0 is not None:
        stored["float8_e8m0fnu"] = raw.view(e8m0)
        byte_parameters["float8_e8m0fnu"] = lambda: torch.full(raw.shape, 3, dtype=torch.uint8).view(e8m0)
    return (
        f"torch {torch.__version__}",
        stored,
        byte_parameters,
        {
            "float32": lambda: torch.full(raw.shape, -1.0, dtype=torch.float32),
            "bfloat16": lambda: torch.full(raw.shape, -1.0, dtype=torch.bfloat16),
        },
        lambda tensor: tensor.to(torch.float32).reshape(-1).tolist(),
        lambda tensor: tensor.view(torch.uint8).reshape(-1).tolist(),
    )


def same_value(got, wanted, kind):
    if math.isnan(wanted):
        return math.isnan(got)
    # A subnormal of float32 may be flushed to zero by hardware; everything else is exact.
    return got == wanted or (wanted < 2.0**-126 and got == 0.0 and kind != "uint8")


def check_loader(load, which="both"):
    """Call ``load(parameter, stored)`` for every name, storage and destination; the faults as lines.

    ``which``: ``decoding`` (floating destinations only), ``destination`` or ``both`` (all destinations).
    Returns (faults, number of values compared).
    """
    backend, stored_kinds, byte_parameters, float_parameters, read_values, read_bytes = make_backend()
    named = "name" in inspect.signature(load).parameters
    faults, compared = [], 0
    for place, names in SCALE_NAMES.items():
        for name in names:
            for stored_kind, stored in stored_kinds.items():
                destinations = {kind: (make, False) for kind, make in float_parameters.items()}
                if which != "decoding":
                    destinations.update({kind: (make, True) for kind, make in byte_parameters.items()})
                for kind, (make, keeps_bytes) in destinations.items():
                    parameter = make()
                    label = f"{place}: {name}: {stored_kind} into {kind} ({backend})"
                    try:
                        load(parameter, stored, name=name) if named else load(parameter, stored)
                    except Exception as error:  # noqa: BLE001 - whatever the loader raises is a fault of it
                        faults.append(f"{label}: raised {type(error).__name__}: {error}")
                        continue
                    got = read_bytes(parameter) if keeps_bytes else read_values(parameter)
                    for byte, found in zip(BYTES, got, strict=True):
                        compared += 1
                        wanted = byte if keeps_bytes else value_of(byte)
                        if not (found == wanted if keeps_bytes else same_value(found, wanted, kind)):
                            faults.append(f"{label}: byte {byte} became {found!r}, it must be {wanted!r}")
                            break
    return faults, compared


def find_loader(text):
    module, _, function = text.partition(":")
    found = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loader", required=True, help="MODULE:FUNCTION of the image's weight loader")
    parser.add_argument("--check", choices=["decoding", "destination", "both"], default="both")
    options = parser.parse_args(arguments)
    try:
        load = find_loader(options.loader)
    except (ImportError, AttributeError, ValueError) as error:
        print(f"could not run: {options.loader}: {type(error).__name__}: {error}")
        return COULD_NOT_RUN
    faults, compared = check_loader(load, options.check)
    for fault in faults:
        print(f"WRONG {fault}")
    if compared == 0 and not faults:
        print("could not run: nothing was compared")
        return COULD_NOT_RUN
    print(f"{options.check}: {compared} values compared, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
