"""The environments engines run in: declared, content-addressed, built once, checked last."""

from assay.image.build import build_image, find_model, image_python
from assay.image.definition import as_shipped, image_digest, load_image

__all__ = ["as_shipped", "build_image", "find_model", "image_digest", "image_python", "load_image"]
