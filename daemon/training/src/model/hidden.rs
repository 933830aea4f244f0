//! Which tensors are matrices between two layers: those that Muon may step.

use murmur_protocol::layout::{ModelLayout, TensorSpec};
use murmur_protocol::manifest::LORA_TARGETS;

/// Begins the names of fully connected layers: `dense.0.weight` is the first.
const DENSE: &str = "dense.";

/// `[outputs, inputs]` of a matrix that maps one layer's values onto the next one's. `None` for what is none (norms, biases,
/// filters of convolutions), for what maps from or onto classes (embeddings, heads), whose rows are stepped one by one, and for
/// the narrow matrices of adapters.
pub(crate) fn hidden_matrix(layout: &ModelLayout, tensor: &TensorSpec) -> Option<[usize; 2]> {
    let [outputs, inputs] = tensor.shape[..] else { return None };
    let name = tensor.name.strip_suffix(".weight")?;
    let is_hidden = match name.strip_prefix(DENSE) {
        // The last one is the head.
        Some(number) => {
            let next = number.parse::<usize>().ok()? + 1;
            layout.tensor(&format!("{DENSE}{next}.weight")).is_some()
        }
        None => name.rsplit('.').next().is_some_and(|part| LORA_TARGETS.contains(&part)),
    };
    is_hidden.then_some([outputs, inputs])
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{
        CnnModel, DataSource, LoraSpec, MlpModel, ModelSpec, RunManifest, TransformerModel,
    };

    use super::*;
    use crate::model::trained_layout;

    fn hidden(edit: impl FnOnce(&mut RunManifest)) -> Vec<(String, [usize; 2])> {
        let model =
            TransformerModel { layers: 1, width: 8, heads: 2, feed_forward: 12, context: 8, ..Default::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        edit(&mut manifest);
        let layout = trained_layout(&manifest);
        let named = layout.tensors().iter().filter_map(|tensor| {
            let name = tensor.name.trim_start_matches("model.layers.0.").trim_end_matches(".weight");
            Some((name.to_owned(), hidden_matrix(&layout, tensor)?))
        });
        named.collect()
    }

    #[test]
    fn blocks_of_transformers_and_dense_layers_before_the_head_are_hidden() {
        let names = |found: Vec<(String, [usize; 2])>| found.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let blocks = hidden(|_| {});
        assert!(blocks.contains(&("mlp.down_proj".to_owned(), [8, 12])), "{blocks:?}");
        let mut expected = LORA_TARGETS.map(str::to_owned);
        expected.sort();
        let mut found: Vec<String> =
            names(blocks).iter().map(|name| name.rsplit('.').next().unwrap().to_owned()).collect();
        found.sort();
        assert_eq!(found, expected);
        let images = |model: ModelSpec| {
            names(hidden(|manifest| (manifest.model, manifest.data.source) = (model, DataSource::Idx)))
        };
        let widths = vec![6, 5];
        let mlp = MlpModel { hidden: widths.clone(), ..MlpModel::default() };
        assert_eq!(images(mlp.into()), ["dense.0", "dense.1"]);
        let cnn = CnnModel { hidden: widths, ..CnnModel::default() };
        assert_eq!(images(cnn.into()), ["dense.0", "dense.1"]);
        assert!(hidden(|manifest| manifest.lora = LoraSpec { rank: 2, ..LoraSpec::default() }).is_empty());
    }
}
