"""The transformers library's side of the comparison in ../transformers.rs. Prints logits [models][8][vocabulary] as JSON."""

import json
import sys

try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    print(error)
    sys.exit(77)

TOKENS = [1, 5, 9, 77, 31, 7, 7, 64]

SIZES = dict(
    vocab_size=80,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=64,
    # Larger than the vocabulary in some families.
    pad_token_id=None,
)

LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=2.0,
    original_max_position_embeddings=16,
)

VARIANTS = {
    "plain": {},
    "tied": dict(tie_word_embeddings=True, rope_theta=50000.0, rms_norm_eps=1e-5),
    "grouped": dict(num_key_value_heads=2),
    "sharded": dict(num_key_value_heads=1, tie_word_embeddings=True),
    "half": {},
    "brain": {},
    "llama3": dict(head_dim=12, attention_bias=True, rope_parameters=LLAMA3),
    "mistral": dict(
        model_type="mistral",
        num_key_value_heads=2,
        head_dim=10,
        sliding_window=None,
        rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=5000.0),
    ),
    "qwen2": dict(model_type="qwen2", num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3": dict(model_type="qwen3", num_key_value_heads=2, head_dim=12),
    "qwen3-bias": dict(model_type="qwen3", num_key_value_heads=1, head_dim=6, attention_bias=True),
    "smollm3": dict(model_type="smollm3", num_key_value_heads=2, no_rope_layers=[1, 0]),
}

DTYPES = {"half": torch.float16, "brain": torch.bfloat16}


def create(variant):
    torch.manual_seed(1)
    # Wider than usual, so that logits differ by more than rounding.
    settings = {"model_type": "llama", "tie_word_embeddings": False, **SIZES, **VARIANTS[variant]}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings, initializer_range=0.3))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            # Biases of zero and scales of one would hide a mistake.
            parameter.data += 0.3 * torch.randn(parameter.shape)
    return model


def by_formula(variant):
    """Weights that the golden check of the Rust test computes as well."""
    model = create(variant)
    tensors = model.state_dict()
    if VARIANTS[variant].get("tie_word_embeddings"):
        del tensors["lm_head.weight"]
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        index = torch.arange(offset, offset + tensor.numel(), dtype=torch.int64)
        values = ((index * 2654435761) % 2**32).double() / 2**32 - 0.5
        values = values * 0.2 + 1.0 if tensor.dim() == 1 else values
        tensor.copy_(values.reshape(tensor.shape).float())
        offset += tensor.numel()
    return model


def logits(model):
    with torch.no_grad():
        return model.float().eval()(torch.tensor([TOKENS])).logits[0]


def save(variant, folder):
    model = create(variant)
    # Weights alone: `model.to` would also round the angles of rotary positions, which no checkpoint holds.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(DTYPES.get(variant, torch.float32))
    model.save_pretrained(folder, max_shard_size="20KB" if variant == "sharded" else "1GB")
    return logits(model).tolist()


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    unloaded = {kind: list(names) for kind, names in info.items() if names}
    assert not unloaded, unloaded
    return logits(model).tolist()


def main():
    match sys.argv[1:]:
        case ["save", folder, *variants]:
            answer = [save(variant, f"{folder}/{variant}") for variant in variants]
        case ["load", *folders]:
            answer = [load(folder) for folder in folders]
        case ["golden", variant]:
            answer = [round(value, 6) for value in logits(by_formula(variant))[-1, :6].tolist()]
        case other:
            sys.exit(f"unknown arguments {other}")
    print(json.dumps(answer))


main()
