"""The transformers library's side of the comparison in ../transformers.rs. Prints logits [models][8][vocabulary] as JSON."""

import json
import sys

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
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
    max_position_embeddings=64,
)

VARIANTS = {
    "plain": {},
    "tied": dict(tie_word_embeddings=True, rope_theta=50000.0, rms_norm_eps=1e-5),
    "grouped": dict(num_key_value_heads=2),
    "sharded": dict(num_key_value_heads=1, tie_word_embeddings=True),
    "half": {},
    "brain": {},
}

DTYPES = {"half": torch.float16, "brain": torch.bfloat16}


def create(variant):
    torch.manual_seed(1)
    # Wider than usual, so that logits differ by more than rounding.
    config = LlamaConfig(**SIZES, **VARIANTS[variant], initializer_range=0.3)
    return LlamaForCausalLM(config)


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
    model, info = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
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
