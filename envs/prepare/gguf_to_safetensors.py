"""A GGUF checkpoint as a folder of safetensors, for engines that read only those. Runs in the image's Python.

`gguf_to_safetensors.py SOURCE.gguf FOLDER`: weights dequantized to float32 and stored as bfloat16, the
tokenizer and the chat template of the file beside them. The same file gives the same bytes.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(source: Path, folder: Path) -> None:
    """Write ``folder``; an exception leaves it unfinished, and its declared digest will not be met."""
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).to(torch.bfloat16)
    # The loader dequantized the weights but still calls them quantized, which it refuses to save.
    for holder, name in (
        (model.config, "quantization_config"),
        (model, "is_quantized"),
        (model, "hf_quantizer"),
    ):
        if hasattr(holder, name):
            try:
                delattr(holder, name)
            except AttributeError:
                setattr(holder, name, None)  # declared by the class: an instance can only overrule it
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder, max_shard_size="100GB")
    AutoTokenizer.from_pretrained(**place).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
