//! Names, shapes and order of a transformer's parameters.

use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::{AttentionBias, TransformerModel};

use crate::model::stage::StageSpec;

/// Those of the whole model: embedding, layer after layer, last norm, head.
pub fn transformer_layout(spec: &TransformerModel) -> ModelLayout {
    stage_layout(spec, &StageSpec::whole(spec))
}

/// Those of one stage: a stretch of the whole model's.
pub(crate) fn stage_layout(spec: &TransformerModel, stage: &StageSpec) -> ModelLayout {
    ModelLayout::in_order(stage_tensors(spec, stage))
}

/// Those that it computes with: its own, and behind them the head, where that is a copy of another stage's table
/// ([`StageSpec::copies_table`]).
pub(crate) fn held_layout(spec: &TransformerModel, stage: &StageSpec) -> ModelLayout {
    let mut tensors = stage_tensors(spec, stage);
    if stage.copies_table(spec) {
        tensors.push(head(spec));
    }
    ModelLayout::in_order(tensors)
}

fn head(spec: &TransformerModel) -> (String, Vec<usize>) {
    ("lm_head.weight".to_owned(), vec![spec.vocabulary as usize, spec.width as usize])
}

fn stage_tensors(spec: &TransformerModel, stage: &StageSpec) -> Vec<(String, Vec<usize>)> {
    let (width, vocabulary) = (spec.width as usize, spec.vocabulary as usize);
    let mut tensors = Vec::new();
    if stage.embeds {
        tensors.push(("model.embed_tokens.weight".to_owned(), vec![vocabulary, width]));
    }
    for layer in stage.layers.clone() {
        let named = |(part, shape): (&str, Vec<usize>)| (format!("model.layers.{layer}.{part}"), shape);
        tensors.extend(layer_tensors(spec).into_iter().map(named));
    }
    if stage.predicts {
        tensors.push(("model.norm.weight".to_owned(), vec![width]));
        if !spec.tied_head {
            tensors.push(head(spec));
        }
    }
    tensors
}

/// In the order in which a layer computes with them. Gate and up lie side by side, so that they are one matrix.
fn layer_tensors(spec: &TransformerModel) -> Vec<(&'static str, Vec<usize>)> {
    let (width, inner) = (spec.width as usize, spec.feed_forward as usize);
    let (query_width, key_width) = (spec.query_width() as usize, spec.key_width() as usize);
    let mut tensors = vec![
        ("input_layernorm.weight", vec![width]),
        ("self_attn.q_proj.weight", vec![query_width, width]),
        ("self_attn.k_proj.weight", vec![key_width, width]),
        ("self_attn.v_proj.weight", vec![key_width, width]),
    ];
    if spec.attention_bias != AttentionBias::None {
        tensors.push(("self_attn.q_proj.bias", vec![query_width]));
        tensors.extend(["self_attn.k_proj.bias", "self_attn.v_proj.bias"].map(|name| (name, vec![key_width])));
    }
    if spec.head_norm {
        let shape = vec![spec.resolved_head_width() as usize];
        tensors.extend(["self_attn.q_norm.weight", "self_attn.k_norm.weight"].map(|name| (name, shape.clone())));
    }
    tensors.push(("self_attn.o_proj.weight", vec![width, query_width]));
    if spec.attention_bias == AttentionBias::All {
        tensors.push(("self_attn.o_proj.bias", vec![width]));
    }
    tensors.extend([
        ("post_attention_layernorm.weight", vec![width]),
        ("mlp.gate_proj.weight", vec![inner, width]),
        ("mlp.up_proj.weight", vec![inner, width]),
        ("mlp.down_proj.weight", vec![width, inner]),
    ]);
    tensors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_lie_one_after_the_other_in_the_whole_and_the_tenth_layer_after_the_second() {
        for tied_head in [false, true] {
            let spec = TransformerModel { layers: 12, head_norm: true, attention_bias: AttentionBias::All, ..spec() };
            let spec = TransformerModel { tied_head, ..spec };
            let whole = transformer_layout(&spec);
            let place = |name: &str| whole.position(name).expect("a tensor of the model");
            let in_order = ["model.embed_tokens.weight", "model.layers.2.mlp.down_proj.weight"];
            let in_order = in_order.iter().chain(&["model.layers.10.mlp.down_proj.weight", "model.norm.weight"]);
            assert!(in_order.map(|name| place(name)).is_sorted());
            assert_eq!(whole.tensors().len(), 2 + 12 * 15 + usize::from(!tied_head));
            let named = |layout: &ModelLayout| {
                layout.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect::<Vec<_>>()
            };
            let stages = StageSpec::cut(&spec, &[1, 2, 9]);
            let parts = stages.iter().flat_map(|stage| named(&stage_layout(&spec, stage)));
            assert_eq!(parts.collect::<Vec<_>>(), named(&whole));
            let held = stages.iter().map(|stage| held_layout(&spec, stage).parameters()).sum::<usize>();
            let table = if tied_head { whole.tensors()[0].len() } else { 0 };
            assert_eq!(held, whole.parameters() + table, "the last stage has a copy of a tied table");
        }
    }

    fn spec() -> TransformerModel {
        TransformerModel { width: 16, heads: 2, feed_forward: 24, context: 12, ..Default::default() }
    }
}
