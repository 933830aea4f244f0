//! The part of a manifest about tables: which column is predicted, from which others, and how their values become numbers.
//!
//! All members must turn equal rows into equal inputs, or they would average models of different functions. So the categories
//! and the statistics by which numbers are standardised are part of the run, and its founder fills them in before anybody joins.
//! Runs that read no table are told without this section, so that they keep their ids.

use serde::{Deserialize, Serialize};

use super::model::Kind;
use super::{DataSource, ManifestError, RunManifest, check, within};

/// Number columns and category columns of a table, at most: a manifest holds what is said of each.
pub const TABLE_COLUMNS_MAX: usize = 256;

/// Different values of a category column, at most.
pub const CATEGORIES_MAX: usize = 64;

/// Characters of a column's name or a category, at most.
const NAME_CHARACTERS_MAX: usize = 128;

/// What is predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableTask {
    /// Which of some values the target has.
    #[default]
    Classification,
    /// A number.
    Regression,
}

/// What a missing number becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingNumbers {
    /// The mean; and where a column has missing values, the model is told by an input of its own that there was none.
    #[default]
    Indicator,
    /// The mean.
    Mean,
}

/// How a table is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableSpec {
    /// The column that is predicted; empty where no table is read.
    pub target: String,
    /// Classes or a number.
    pub task: TableTask,
    /// Columns that are not read, such as names and numbers of patients.
    pub ignore: Vec<String>,
    /// Columns of numbers; where these and `categories` are empty, the founder takes all columns and finds out which are which.
    pub numbers: Vec<String>,
    /// For each column of categories a list: its name, then its values; without values the founder fills them in.
    pub categories: Vec<Vec<String>>,
    /// What becomes of missing numbers.
    pub missing: MissingNumbers,
    /// Number columns whose missing values have an input; filled in by the founder.
    pub indicators: Vec<String>,
    /// Whether rare classes weigh more in the loss, so that all classes together weigh alike.
    pub balance_classes: bool,
    /// The weight of each class of `data.class_names` in the loss; filled in by the founder where `balance_classes` is on.
    pub class_weights: Vec<f64>,
    /// (column, lowest, highest): between which values a number lies by what is known without the data. Only statistics with
    /// noise need them.
    pub ranges: Vec<(String, f64, f64)>,
    /// The mean of each number column; filled in by the founder.
    pub means: Vec<f64>,
    /// The standard deviation of each number column; filled in by the founder.
    pub deviations: Vec<f64>,
    /// Rows of all tables that the founder of a synchronous run has statistics of, its own and others', 0 to 10¹²; filled in by
    /// the founder. 0 where it has none of others: then members weigh alike.
    pub rows: u64,
    /// How many members these rows are of, 0 to 65,536; filled in by the founder.
    pub members: u32,
    /// The target's mean in a regression; filled in by the founder.
    pub target_mean: f64,
    /// The target's standard deviation in a regression; filled in by the founder.
    pub target_deviation: f64,
}

impl Default for TableSpec {
    fn default() -> Self {
        TableSpec {
            target: String::new(),
            task: TableTask::Classification,
            ignore: Vec::new(),
            numbers: Vec::new(),
            categories: Vec::new(),
            missing: MissingNumbers::Indicator,
            indicators: Vec::new(),
            balance_classes: false,
            class_weights: Vec::new(),
            ranges: Vec::new(),
            means: Vec::new(),
            deviations: Vec::new(),
            rows: 0,
            members: 0,
            target_mean: 0.0,
            target_deviation: 1.0,
        }
    }
}

impl TableSpec {
    /// Whether members of a synchronous run weigh by their rows.
    pub fn weighs_members(&self) -> bool {
        self.rows > 0
    }

    /// What a member with so many rows to train on weighs in a synchronous run, 1 where it has as many as the mean member.
    /// Not more than if it had all of them.
    pub fn weight_of(&self, rows: usize) -> f64 {
        match self.weighs_members() {
            true => (rows as f64 / self.rows as f64).min(1.0) * f64::from(self.members),
            false => 1.0,
        }
    }

    /// Inputs that a row has: one for each number and each indicator, and for each category column one for each of its values
    /// and one that says that there was none.
    pub fn inputs(&self) -> usize {
        self.numbers.len() + self.indicators.len() + self.categories.iter().map(Vec::len).sum::<usize>()
    }
}

/// Whether a section has no lines in the canonical text.
pub(super) fn is_left_out(source: DataSource, section: &str) -> bool {
    section == "table" && source != DataSource::Table
}

/// Nothing in the section is set.
fn left_out(table: &TableSpec) -> Result<(), ManifestError> {
    let usual = TableSpec::default();
    macro_rules! check_all {
        ($($field:ident)*) => {
            $(check(
                concat!("table.", stringify!($field)),
                format!("{:?}", table.$field),
                table.$field == usual.$field,
                "nothing: the section [table] is for data.source = \"table\"",
            )?;)*
        };
    }
    check_all!(target task ignore numbers categories missing indicators balance_classes class_weights ranges);
    check_all!(means deviations rows members target_mean target_deviation);
    Ok(())
}

pub(super) fn validate(manifest: &RunManifest) -> Result<(), ManifestError> {
    let RunManifest { model, data, table, .. } = manifest;
    let (inputs, classes) = (model.inputs(), model.classes());
    let founded = inputs > 0;
    if data.source != DataSource::Table {
        let rule = "0 unless data.source = \"table\"";
        check("model.inputs", inputs, !founded, rule)?;
        return left_out(table);
    }
    let rule = "\"mlp\" where data.source = \"table\"";
    check("model.kind", format!("{:?}", model.kind()).to_lowercase(), model.kind() == Kind::Mlp, rule)?;
    check("data.share", data.share, !data.share, "false where data.source = \"table\"")?;
    columns(table)?;
    numbers(table)?;
    let rule = "0 (the founder fills it in), or the inputs of the columns of [table]";
    check("model.inputs", inputs, !founded || inputs as usize == table.inputs(), rule)?;
    if founded {
        let complete =
            table.means.len() == table.numbers.len() && table.categories.iter().all(|column| column.len() > 1);
        check("table.means", format!("{} values", table.means.len()), complete, "one for each of table.numbers")?;
        let expected = match table.task {
            TableTask::Classification => data.class_names.len().max(2),
            TableTask::Regression => 1,
        };
        let rule = "the number of data.class_names, or 1 in a regression";
        check("model.classes", classes, classes as usize == expected, rule)?;
    }
    let weights = &table.class_weights;
    let holds = weights.iter().all(|weight| (1e-6..=1e6).contains(weight))
        && (weights.is_empty() || weights.len() == data.class_names.len());
    let rule = "empty, or a number from 0.000001 to 1000000 for each of data.class_names";
    check("table.class_weights", format!("{weights:?}"), holds, rule)
}

fn columns(table: &TableSpec) -> Result<(), ManifestError> {
    let TableSpec { target, ignore, numbers, categories, indicators, .. } = table;
    let is_name = |name: &String| (1..=NAME_CHARACTERS_MAX).contains(&name.chars().count());
    check("table.target", format!("{target:?}"), is_name(target), "the name of a column, 1 to 128 characters")?;
    let once = |names: &[&String]| names.iter().enumerate().all(|(place, name)| !names[..place].contains(name));
    let named: Vec<&String> = numbers.iter().chain(categories.iter().filter_map(|column| column.first())).collect();
    let mut all = named.clone();
    all.push(target);
    all.extend(ignore);
    let rule = "names of 1 to 128 characters, each once in target, ignore, numbers and categories, 256 columns at most";
    let holds = all.iter().all(|name| is_name(name)) && once(&all) && named.len() <= TABLE_COLUMNS_MAX;
    check("table.numbers", format!("{} columns", named.len()), holds, rule)?;
    let values = |column: &Vec<String>| {
        let values: Vec<&String> = column.iter().skip(1).collect();
        !column.is_empty()
            && values.len() <= CATEGORIES_MAX
            && values.iter().all(|value| is_name(value))
            && once(&values)
    };
    let rule = "for each column its name and up to 64 different values of 1 to 128 characters";
    check("table.categories", format!("{} columns", categories.len()), categories.iter().all(values), rule)?;
    let known = indicators.iter().all(|name| numbers.contains(name)) && once(&indicators.iter().collect::<Vec<_>>());
    check("table.indicators", format!("{indicators:?}"), known, "columns of table.numbers, each once")
}

fn numbers(table: &TableSpec) -> Result<(), ManifestError> {
    let TableSpec { numbers, means, deviations, ranges, target_mean, target_deviation, .. } = table;
    let holds = (means.is_empty() || means.len() == numbers.len()) && means.iter().all(|mean| mean.is_finite());
    check("table.means", format!("{means:?}"), holds, "empty, or a number for each of table.numbers")?;
    let holds = deviations.len() == means.len() && deviations.iter().all(|value| value.is_finite() && *value > 0.0);
    check("table.deviations", format!("{deviations:?}"), holds, "a number above 0 for each of table.means")?;
    check("table.rows", table.rows, table.rows <= 1_000_000_000_000, "0 to 1000000000000")?;
    let holds = table.members <= 65_536 && (table.members > 0) == (table.rows > 0);
    check("table.members", table.members, holds, "0 where table.rows is, else 1 to 65536")?;
    within("table.target_mean", *target_mean, f64::MIN, f64::MAX, "a number")?;
    within("table.target_deviation", *target_deviation, f64::MIN_POSITIVE, f64::MAX, "a number above 0")?;
    let is_range = |(_, low, high): &(String, f64, f64)| low < high && low.is_finite() && high.is_finite();
    let rule = "for each column its name, the lowest and the highest value";
    check("table.ranges", format!("{ranges:?}"), ranges.iter().all(is_range), rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{CnnModel, MlpModel, ModelSpec};

    fn patients() -> RunManifest {
        let mut manifest = RunManifest { model: MlpModel::default().into(), ..RunManifest::default() };
        manifest.data.source = DataSource::Table;
        manifest.table.target = "ill".to_owned();
        manifest
    }

    fn model(inputs: u32, classes: u32) -> ModelSpec {
        MlpModel { inputs, classes, ..MlpModel::default() }.into()
    }

    fn founded() -> RunManifest {
        let mut manifest = patients();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        manifest.table.numbers = names(&["age", "weight"]);
        manifest.table.categories = vec![names(&["sex", "f", "m"])];
        manifest.table.indicators = names(&["weight"]);
        (manifest.table.means, manifest.table.deviations) = (vec![50.0, 70.5], vec![20.0, 12.25]);
        manifest.table.ranges = vec![("age".to_owned(), 0.0, 120.0)];
        manifest.data.class_names = names(&["no", "yes"]);
        manifest.model = model(6, 2);
        manifest
    }

    #[test]
    fn runs_without_tables_are_told_as_ever_and_those_with_one_read_back() {
        let text = RunManifest::default().canonical_text();
        assert!(!text.contains("table.") && !text.contains("model.inputs"), "{text}");
        // Nor has a run that was founded before members weighed by their rows got another id.
        assert!(!founded().canonical_text().contains("table.rows") && !text.contains("table.members"));
        let mut weighing = founded();
        (weighing.table.rows, weighing.table.members) = (331, 4);
        assert_eq!(RunManifest::from_text(&weighing.canonical_text()), Ok(weighing));
        for manifest in [patients(), founded()] {
            let text = manifest.canonical_text();
            assert!(text.contains("data.source = \"table\"\n") && text.contains("table.target = \"ill\"\n"), "{text}");
            assert_eq!(RunManifest::from_text(&text), Ok(manifest));
        }
        let text = founded().canonical_text();
        assert!(text.contains("table.categories = [[\"sex\", \"f\", \"m\"]]\n"), "{text}");
        assert!(text.contains("table.ranges = [[\"age\", 0.0, 120.0]]\n"), "{text}");
        assert_eq!(founded().prediction(), "row");
    }

    #[test]
    fn what_does_not_fit_together_is_refused_by_name() {
        let refused = |edit: fn(&mut RunManifest)| {
            let mut manifest = founded();
            edit(&mut manifest);
            manifest.validate().expect_err("out of range").to_string()
        };
        assert!(refused(|manifest| manifest.model = CnnModel::default().into()).starts_with("model.kind = cnn"));
        assert!(refused(|manifest| manifest.table.target = "age".to_owned()).starts_with("table.numbers"));
        assert!(refused(|manifest| manifest.table.target.clear()).starts_with("table.target = \"\""));
        assert!(refused(|manifest| manifest.table.categories[0].push("f".to_owned())).starts_with("table.categories"));
        assert!(refused(|manifest| manifest.table.indicators.push("sex".to_owned())).starts_with("table.indicators"));
        assert!(refused(|manifest| manifest.table.deviations[1] = 0.0).starts_with("table.deviations"));
        assert!(refused(|manifest| manifest.table.means[1] = f64::NAN).starts_with("table.means"));
        assert!(refused(|manifest| manifest.table.target_deviation = 0.0).starts_with("table.target_deviation"));
        assert!(refused(|manifest| manifest.table.rows = 9).starts_with("table.members = 0"));
        assert!(refused(|manifest| manifest.table.class_weights = vec![1.0]).starts_with("table.class_weights"));
        assert!(refused(|manifest| manifest.table.ranges[0].1 = 200.0).starts_with("table.ranges"));
        assert!(refused(|manifest| manifest.model = model(5, 2)).starts_with("model.inputs = 5"));
        assert!(refused(|manifest| manifest.model = model(6, 3)).starts_with("data.class_names"));
        assert!(refused(|manifest| manifest.data.label_skew = 0.5).starts_with("data.label_skew"));
        let images = refused(|manifest| {
            manifest.data.source = DataSource::Idx;
            manifest.data.class_names.clear();
        });
        assert!(images.starts_with("model.inputs = 6"), "{images}");
        let mut text = RunManifest::default();
        text.table.target = "ill".to_owned();
        assert!(text.validate().expect_err("no table").to_string().contains("[table] is for data.source"));
    }

    #[test]
    fn a_member_weighs_by_its_rows_and_not_without_bound() {
        let mut table = founded().table;
        assert_eq!(table.weight_of(7), 1.0);
        (table.rows, table.members) = (320, 4);
        assert_eq!((table.weight_of(20), table.weight_of(120)), (0.25, 1.5));
        assert_eq!(table.weight_of(1_000_000), 4.0, "as if it had all rows, and not more");
    }
}
