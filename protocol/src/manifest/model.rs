//! The model's kind and size. Each kind has settings of its own; a run file has one section, in which the keys of all kinds
//! stand side by side, and those without meaning for the run's kind at their defaults.
//!
//! A further kind is a struct, a variant of [`ModelSpec`], its keys in [`Section`] and a line in `kinds!`.

use serde::{Deserialize, Serialize};

use super::{AttentionBias, ManifestError, RopeScaling, TransformerModel, transformer};

/// A model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Section", into = "Section")]
pub enum ModelSpec {
    /// Reads text; the others read images with labels, or rows of a table.
    Transformer(TransformerModel),
    /// Classifies images, or predicts from rows of tables.
    Mlp(MlpModel),
    /// Classifies images.
    Cnn(CnnModel),
}

/// Fully connected layers with ReLU between them.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpModel {
    /// Where it reads images: rows of pixels, 1 to 1,024.
    pub image_height: u32,
    /// Columns of pixels, 1 to 1,024.
    pub image_width: u32,
    /// 1 (grey) or 3 (red, green, blue).
    pub image_channels: u32,
    /// Inputs of a row of a table, filled in by the founder; 0 where images are read.
    pub inputs: u32,
    /// Classes that a label names, from 0; 2 to 65,536. 1 is a number instead (a regression on a table).
    pub classes: u32,
    /// Sizes of the fully connected layers between the input and the classes; up to 8.
    pub hidden: Vec<u32>,
}

/// 3 × 3 convolutions, each with ReLU and 2 × 2 max pooling, then fully connected layers.
#[derive(Clone, Debug, PartialEq)]
pub struct CnnModel {
    /// Rows of pixels, 1 to 1,024.
    pub image_height: u32,
    /// Columns of pixels, 1 to 1,024.
    pub image_width: u32,
    /// 1 (grey) or 3 (red, green, blue).
    pub image_channels: u32,
    /// Classes that a label names, from 0; 2 to 65,536.
    pub classes: u32,
    /// Sizes of the fully connected layers between the last convolution and the classes; up to 8.
    pub hidden: Vec<u32>,
    /// Output channels of each convolution, 1 to 8 of them.
    pub convolutions: Vec<u32>,
}

impl ModelSpec {
    /// Whether it reads text; the others read images with labels, or rows of a table.
    pub fn reads_text(&self) -> bool {
        matches!(self, ModelSpec::Transformer(_))
    }

    /// Checks what holds for it whatever the data is. The others depend on that: `kinds.rs` checks them.
    pub(super) fn validate(&self) -> Result<(), ManifestError> {
        match self {
            ModelSpec::Transformer(model) => transformer::validate(model),
            ModelSpec::Mlp(_) | ModelSpec::Cnn(_) => Ok(()),
        }
    }

    /// The transformer, if it is one.
    pub fn transformer(&self) -> Option<&TransformerModel> {
        match self {
            ModelSpec::Transformer(model) => Some(model),
            ModelSpec::Mlp(_) | ModelSpec::Cnn(_) => None,
        }
    }

    /// Tokens of context of a model that reads text; 1 of others, whose examples are one image or row.
    pub fn context(&self) -> u32 {
        self.transformer().map_or(1, |model| model.context)
    }

    /// Different tokens that it knows; 0 where it reads no text.
    pub fn vocabulary(&self) -> u32 {
        self.transformer().map_or(0, |model| model.vocabulary)
    }

    /// Classes of whole examples, 1 for a number; 0 where it reads text.
    pub fn classes(&self) -> u32 {
        match self {
            ModelSpec::Transformer(_) => 0,
            ModelSpec::Mlp(model) => model.classes,
            ModelSpec::Cnn(model) => model.classes,
        }
    }

    /// Inputs of a row of a table; 0 where it reads none, or the founder has not yet filled them in.
    pub fn inputs(&self) -> u32 {
        match self {
            ModelSpec::Mlp(model) => model.inputs,
            ModelSpec::Transformer(_) | ModelSpec::Cnn(_) => 0,
        }
    }
}

impl Default for ModelSpec {
    fn default() -> Self {
        TransformerModel::default().into()
    }
}

/// The section `[model]` of a run file.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Section {
    kind: Kind,
    layers: u32,
    width: u32,
    heads: u32,
    head_width: u32,
    key_value_heads: u32,
    feed_forward: u32,
    context: u32,
    vocabulary: u32,
    tied_head: bool,
    rope_theta: f64,
    rope_scaling: RopeScaling,
    rope_factor: f64,
    rope_low_factor: f64,
    rope_high_factor: f64,
    rope_original_context: u32,
    layers_without_rope: Vec<u32>,
    attention_bias: AttentionBias,
    head_norm: bool,
    norm_epsilon: f64,
    image_height: u32,
    image_width: u32,
    image_channels: u32,
    inputs: u32,
    classes: u32,
    hidden: Vec<u32>,
    convolutions: Vec<u32>,
}

impl Default for Section {
    fn default() -> Self {
        // About 0.2M parameters: four daemons on two cores finish the built-in run in under three minutes.
        Section {
            kind: Kind::Transformer,
            layers: 4,
            width: 64,
            heads: 4,
            head_width: 0,
            key_value_heads: 0,
            feed_forward: 176,
            context: 128,
            vocabulary: 256,
            tied_head: false,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            rope_factor: 1.0,
            // Llama 3.1's.
            rope_low_factor: 1.0,
            rope_high_factor: 4.0,
            rope_original_context: 8192,
            layers_without_rope: Vec::new(),
            attention_bias: AttentionBias::None,
            head_norm: false,
            norm_epsilon: 1e-5,
            // MNIST's.
            image_height: 28,
            image_width: 28,
            image_channels: 1,
            inputs: 0,
            classes: 10,
            hidden: vec![256],
            convolutions: vec![16, 32],
        }
    }
}

/// For each kind its struct, and the keys of the section that it has.
macro_rules! kinds {
    ($($kind:ident: $model:ident { $($key:ident),* };)*) => {
        /// Which kinds there are, as `kind` names them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub(super) enum Kind { $($kind,)* }

        impl ModelSpec {
            pub(super) fn kind(&self) -> Kind {
                match self { $(ModelSpec::$kind(_) => Kind::$kind,)* }
            }
        }

        impl From<ModelSpec> for Section {
            fn from(model: ModelSpec) -> Section {
                let kind = model.kind();
                match model {
                    $(ModelSpec::$kind($model { $($key),* }) => Section { kind, $($key,)* ..Section::default() },)*
                }
            }
        }

        impl Section {
            /// The model, without the keys that its kind does not have.
            fn model(self) -> ModelSpec {
                match self.kind {
                    $(Kind::$kind => ModelSpec::$kind($model { $($key: self.$key),* }),)*
                }
            }
        }

        $(
            impl Default for $model {
                fn default() -> Self {
                    let section = Section::default();
                    $model { $($key: section.$key),* }
                }
            }

            impl From<$model> for ModelSpec {
                fn from(model: $model) -> ModelSpec {
                    ModelSpec::$kind(model)
                }
            }
        )*
    };
}

kinds! {
    Transformer: TransformerModel {
        layers, width, heads, head_width, key_value_heads, feed_forward, context, vocabulary, tied_head, rope_theta,
        rope_scaling, rope_factor, rope_low_factor, rope_high_factor, rope_original_context, layers_without_rope,
        attention_bias, head_norm, norm_epsilon
    };
    Mlp: MlpModel { image_height, image_width, image_channels, inputs, classes, hidden };
    Cnn: CnnModel { image_height, image_width, image_channels, classes, hidden, convolutions };
}

impl TryFrom<Section> for ModelSpec {
    type Error = WithoutMeaning;

    fn try_from(section: Section) -> Result<ModelSpec, WithoutMeaning> {
        let model = section.clone().model();
        let keys = |section| toml::Table::try_from(section).expect("a section is a table");
        let (given, kept) = (keys(section), keys(Section::from(model.clone())));
        // As text, for of numbers NaN is none that equals itself.
        match given.iter().find(|(key, value)| value.to_string() != kept[*key].to_string()) {
            None => Ok(model),
            Some((key, value)) => {
                Err(WithoutMeaning { key: key.clone(), value: value.clone(), kind: given["kind"].clone() })
            }
        }
    }
}

/// A key has another value than by default, though a model of this kind has no such thing. Settings find the key in this text.
#[derive(Debug, thiserror::Error)]
#[error("model.{key} = {value} has no meaning for a model of kind {kind}")]
struct WithoutMeaning {
    key: String,
    value: toml::Value,
    kind: toml::Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ModelSpec, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn what_a_kind_of_model_does_not_have_is_refused_by_name() {
        let refused = |text: &str| read(text).expect_err(text);
        assert_eq!(refused("hidden = [16]"), "model.hidden = [16] has no meaning for a model of kind \"transformer\"");
        assert_eq!(
            refused("kind = \"mlp\"\nwidth = 96"),
            "model.width = 96 has no meaning for a model of kind \"mlp\""
        );
        assert!(refused("kind = \"mlp\"\nconvolutions = [4]").starts_with("model.convolutions = [4] has no meaning"));
        assert!(refused("kind = \"cnn\"\ninputs = 6").starts_with("model.inputs = 6 has no meaning"));
        assert!(refused("kind = \"cnn\"\nrope_theta = nan").starts_with("model.rope_theta = nan has no meaning"));
        assert!(read("rope_theta = nan").is_ok_and(|model| model.transformer().expect("one").rope_theta.is_nan()));
        assert!(refused("wings = 2").starts_with("unknown field `wings`"));
    }

    #[test]
    fn every_key_is_one_of_a_kinds_and_reads_back() {
        let all = toml::Table::try_from(Section::default()).expect("a table");
        let mut of_kinds = vec!["kind"];
        for (key, default) in all.iter().filter(|(key, _)| *key != "kind") {
            let changed: toml::Value = match default {
                toml::Value::Integer(number) => (number + 1).into(),
                toml::Value::Float(number) => (number * 2.0).into(),
                toml::Value::Boolean(truth) => (!truth).into(),
                toml::Value::String(_) if key == "rope_scaling" => "linear".into(),
                toml::Value::String(_) => "all".into(),
                _ => vec![3i64].into(),
            };
            for kind in ["transformer", "mlp", "cnn"] {
                let mut given = all.clone();
                given.extend([("kind".to_owned(), kind.into()), (key.clone(), changed.clone())]);
                if let Ok(model) = read(&given.to_string()) {
                    assert_eq!(toml::Table::try_from(&model).expect("a table"), given);
                    of_kinds.push(key);
                }
            }
        }
        of_kinds.dedup();
        assert_eq!(of_kinds.len(), all.len(), "{of_kinds:?}");
    }
}
