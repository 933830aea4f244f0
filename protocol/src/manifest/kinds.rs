//! The part of a manifest about kinds of data and of models beyond bytes and transformers: its ranges, and what belongs
//! together.
//!
//! Such a field is told only where it has not its default, so that runs without it keep the id that they had before there
//! was such a thing.

use super::{CnnModel, DataSource, DataSpec, ManifestError, MlpModel, ModelSpec, RunManifest, check};

/// All names of classes together, in bytes: a manifest holds them. For 1,000 classes of eight letters each.
const CLASS_NAMES_BYTES_MAX: usize = 8 * 1024;

/// What is told always, as before there were other models. (The other sections list what is not.)
const MODEL_FIELDS_TOLD: [&str; 6] = ["kind", "layers", "width", "heads", "feed_forward", "context"];

const OPTIMIZER_FIELDS: [&str; 4] = ["kind", "muon_learning_rate", "muon_momentum", "match_batch"];
const DATA_FIELDS: [&str; 8] =
    ["remote", "field", "prefix", "separator", "tokenizer", "class_names", "label_skew", "shift_pixels"];

/// Checks the fields of models and data against each other.
pub(super) fn validate(model: &ModelSpec, data: &DataSpec) -> Result<(), ManifestError> {
    let is_table = data.source == DataSource::Table;
    let fits = model.reads_text() != (data.source.gives_images() || is_table);
    let rule = "\"idx\" or \"image-folders\" for the models mlp and cnn, \"table\" for mlp, any other source for the transformer";
    let source = toml::Value::try_from(data.source).expect("the name of a source");
    check("data.source", source, fits, rule)?;
    images(model, is_table)?;
    text(data)?;
    classes(model, data)
}

fn images(model: &ModelSpec, is_table: bool) -> Result<(), ManifestError> {
    let (ModelSpec::Mlp(MlpModel { image_height, image_width, image_channels, classes, hidden, .. })
    | ModelSpec::Cnn(CnnModel { image_height, image_width, image_channels, classes, hidden, .. })) = model
    else {
        return Ok(());
    };
    check("model.image_height", image_height, (1..=1024).contains(image_height), "1 to 1024")?;
    check("model.image_width", image_width, (1..=1024).contains(image_width), "1 to 1024")?;
    check("model.image_channels", image_channels, matches!(image_channels, 1 | 3), "1 (grey) or 3 (colours)")?;
    let least = if is_table { 1 } else { 2 };
    let rule = if is_table { "1 (a number) to 65536" } else { "2 to 65536" };
    check("model.classes", classes, (least..=65_536).contains(classes), rule)?;
    let sizes = hidden.len() <= 8 && hidden.iter().all(|size| (1..=65_536).contains(size));
    check("model.hidden", format!("{hidden:?}"), sizes, "up to 8 sizes of 1 to 65536")?;
    let ModelSpec::Cnn(CnnModel { convolutions, .. }) = model else { return Ok(()) };
    let channels = (1..=8).contains(&convolutions.len()) && convolutions.iter().all(|size| (1..=4096).contains(size));
    // Each pooling halves rows and columns.
    let remains = image_height.min(image_width) >> convolutions.len() > 0;
    let rule = "1 to 8 numbers of channels of 1 to 4096, and no more than halvings of the image";
    check("model.convolutions", format!("{convolutions:?}"), channels && remains, rule)
}

fn text(data: &DataSpec) -> Result<(), ManifestError> {
    let DataSpec { field, prefix, separator, tokenizer, .. } = data;
    check("data.field", field, (1..=128).contains(&field.chars().count()), "1 to 128 characters")?;
    check("data.prefix", prefix, prefix.chars().count() <= 64, "up to 64 characters")?;
    check("data.separator", separator, separator.chars().count() <= 64, "up to 64 characters")?;
    let hexadecimal = tokenizer.len() == 64 && tokenizer.bytes().all(|byte| byte.is_ascii_hexdigit());
    let none = tokenizer.is_empty();
    check(
        "data.tokenizer",
        tokenizer,
        none || hexadecimal,
        "empty (bytes) or 64 hexadecimal digits: the file's BLAKE3",
    )?;
    let files = data.source.gives_text_of_files() && !data.share;
    let rule = "empty unless text of files is read; shared data (data.share = true) is read as bytes";
    check("data.tokenizer", tokenizer, none || files, rule)
}

fn classes(model: &ModelSpec, data: &DataSpec) -> Result<(), ManifestError> {
    let DataSpec { class_names, label_skew, shift_pixels, .. } = data;
    let count = class_names.len();
    let is_table = data.source == DataSource::Table;
    let named = is_table || data.source == DataSource::ImageFolders;
    let rule = "empty unless data.source = \"image-folders\" or \"table\"";
    check("data.class_names", format!("{count} names"), count == 0 || named, rule)?;
    let rule = "empty (the founder lists them) or model.classes different names of 8192 bytes together";
    let bytes: usize = class_names.iter().map(String::len).sum();
    let different = class_names.iter().enumerate().all(|(place, name)| !class_names[..place].contains(name));
    // The founder of a table's run counts its classes.
    let counted = count == model.classes() as usize || is_table && model.inputs() == 0 && count > 1;
    let fits = counted && bytes <= CLASS_NAMES_BYTES_MAX && different;
    check("data.class_names", format!("{count} names"), count == 0 || fits, rule)?;
    let images = data.source.gives_images();
    let skew = *label_skew == 0.0 || images && (0.01..=1000.0).contains(label_skew);
    check("data.label_skew", label_skew, skew, "0 (off), or 0.01 to 1000 where images are read")?;
    let shift = *shift_pixels == 0 || images && *shift_pixels <= 8;
    check("data.shift_pixels", shift_pixels, shift, "0 (off), or up to 8 where images are read")
}

/// Whether a field has no line in the canonical text: one of those above, at its default.
pub(super) fn is_left_out(section: &str, field: &str, value: &toml::Value) -> bool {
    let listed = match section {
        "model" => !MODEL_FIELDS_TOLD.contains(&field),
        "optimizer" => OPTIMIZER_FIELDS.contains(&field),
        "data" => DATA_FIELDS.contains(&field),
        "gossip" => field == "kind" || field == "cut",
        "base" => field == "remote",
        "run" => field == "founder",
        "table" => field == "rows" || field == "members",
        _ => false,
    };
    listed && default_of(section, field).as_ref() == Some(value)
}

fn default_of(section: &str, field: &str) -> Option<toml::Value> {
    let defaults = toml::Table::try_from(RunManifest::default()).ok()?;
    defaults.get(section)?.get(field).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::OptimizerKind;

    fn digits() -> RunManifest {
        let mut manifest = RunManifest { model: CnnModel::default().into(), ..RunManifest::default() };
        manifest.data.source = DataSource::Idx;
        manifest
    }

    #[test]
    fn what_has_its_default_is_not_told_and_what_has_not_reads_back() {
        let mut manifest = digits();
        let text = manifest.canonical_text();
        assert!(!text.contains("classes") && !text.contains("tokenizer") && !text.contains("prefix"), "{text}");
        assert_eq!(RunManifest::from_text(&text), Ok(manifest.clone()));
        manifest.data.source = DataSource::ImageFolders;
        manifest.model = CnnModel { classes: 2, hidden: vec![32, 16], ..CnnModel::default() }.into();
        manifest.data.class_names = vec!["cat".to_owned(), "dog".to_owned()];
        manifest.data.label_skew = 0.5;
        let text = manifest.canonical_text();
        assert!(text.contains("data.source = \"image-folders\"\n"), "{text}");
        assert_eq!(RunManifest::from_text(&text), Ok(manifest));
        let mut texts = RunManifest::default();
        texts.data.prefix = "<s>".to_owned();
        let text = texts.canonical_text();
        assert!(text.contains("data.prefix = \"<s>\"\n"), "{text}");
        assert_eq!(RunManifest::from_text(&text), Ok(texts.clone()));
        texts.data.prefix = "<".repeat(65);
        assert!(texts.validate().expect_err("too long").to_string().starts_with("data.prefix"));
    }

    #[test]
    fn runs_of_plain_adamw_are_told_as_ever_and_others_read_back() {
        let mut manifest = RunManifest::default();
        let text = manifest.canonical_text();
        assert!(!text.contains("muon") && !text.contains("optimizer.kind") && !text.contains("match_batch"), "{text}");
        let id = manifest.run_id();
        (manifest.optimizer.kind, manifest.optimizer.match_batch) = (OptimizerKind::Muon, true);
        let text = manifest.canonical_text();
        assert!(text.contains("optimizer.kind = \"muon\"\noptimizer.learning_rate"), "{text}");
        assert_eq!(RunManifest::from_text(&text), Ok(manifest.clone()));
        assert_ne!(manifest.run_id(), id);
        manifest.optimizer.muon_momentum = 1.0;
        assert!(manifest.validate().expect_err("no decay").to_string().starts_with("optimizer.muon_momentum = 1"));
    }

    #[test]
    fn what_does_not_belong_together_is_refused_by_name() {
        let refused = |change: fn(&mut RunManifest)| {
            let mut manifest = digits();
            change(&mut manifest);
            manifest.validate().expect_err("a contradiction").to_string()
        };
        assert!(refused(|manifest| manifest.model = ModelSpec::default()).starts_with("data.source = \"idx\""));
        let of = |model: CnnModel| {
            let error = RunManifest { model: model.into(), ..digits() }.validate();
            error.expect_err("out of range").to_string()
        };
        let convolutions = vec![8; 5];
        assert!(of(CnnModel { convolutions, ..CnnModel::default() }).starts_with("model.convolutions"));
        assert!(of(CnnModel { image_channels: 2, ..CnnModel::default() }).starts_with("model.image_channels"));
        assert!(refused(|manifest| manifest.data.tokenizer = "0".repeat(64)).starts_with("data.tokenizer"));
        assert!(refused(|manifest| manifest.data.class_names = vec!["a".to_owned()]).starts_with("data.class_names"));
        assert!(refused(|manifest| manifest.data.label_skew = f64::NAN).starts_with("data.label_skew"));
        assert!(refused(|manifest| manifest.data.share = true).starts_with("data.share"));
        let mlp = RunManifest { model: MlpModel::default().into(), ..digits() };
        assert_eq!(mlp.validate(), Ok(()));
        let mut text = RunManifest::default();
        text.data.source = DataSource::Files;
        text.data.tokenizer = "0".repeat(64);
        assert_eq!(text.validate(), Ok(()));
        text.data.share = true;
        assert!(text.validate().expect_err("bytes only").to_string().starts_with("data.tokenizer"));
    }
}
