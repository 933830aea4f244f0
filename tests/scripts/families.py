"""Models of the transformers library for ../tests/families.rs.

make FOLDER FAMILY...           writes a small random model of each family to FOLDER/FAMILY
losses TEXT FOLDER...           prints the mean loss of each model on the held-out windows of TEXT, as JSON; a folder with an
                                adapter_config.json is loaded by PEFT
"""

import json
import os
import sys

try:
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    print(error)
    sys.exit(77)

SIZES = dict(
    vocab_size=256,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    # Larger than the vocabulary in some families.
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)

LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)

FAMILIES = {
    "llama3": dict(model_type="llama", head_dim=12, rope_parameters=LLAMA3, tie_word_embeddings=False),
    "smollm2": dict(model_type="llama", tie_word_embeddings=True),
    # Its window is longer than the run's context.
    "mistral": dict(model_type="mistral", head_dim=10, sliding_window=40, tie_word_embeddings=False),
    "qwen2": dict(model_type="qwen2", tie_word_embeddings=True),
    "qwen3": dict(model_type="qwen3", head_dim=12, tie_word_embeddings=False),
    "smollm3": dict(model_type="smollm3", no_rope_layers=[1, 0]),
}

# Those of the run in families.rs.
CONTEXT, WINDOWS = 32, 4


def make(folder, family):
    torch.manual_seed(1)
    config = AutoConfig.for_model(**SIZES, **FAMILIES[family], initializer_range=0.1)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            # Biases of zero and scales of one would hide a mistake.
            parameter.data += 0.3 * torch.randn(parameter.shape)
    model.save_pretrained(f"{folder}/{family}")


def loss(text, folder):
    adapters = os.path.exists(f"{folder}/adapter_config.json")
    model = (AutoPeftModelForCausalLM if adapters else AutoModelForCausalLM).from_pretrained(folder).float().eval()
    held_out = open(text, "rb").read()
    held_out = held_out[len(held_out) - len(held_out) // 2 :]
    last = len(held_out) - CONTEXT - 1
    starts = [last * index // (WINDOWS - 1) for index in range(WINDOWS)]
    windows = torch.tensor([list(held_out[start : start + CONTEXT + 1]) for start in starts])
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits.double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()


def main():
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["make", folder, *families]:
            for family in families:
                make(folder, family)
        case ["losses", text, *folders]:
            print(json.dumps([loss(text, folder) for folder in folders]))
        case other:
            sys.exit(f"unknown arguments {other}")


main()
