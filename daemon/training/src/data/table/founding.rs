//! What a founder fills into the file of a run on tables: columns, categories, statistics, classes, sizes of the model.

use murmur_protocol::manifest::{
    MANIFEST_BYTES_MAX, MissingNumbers, ModelSpec, RunManifest, TABLE_COLUMNS_MAX, TableTask,
};

use super::cells::place_among;
use super::error::TableError;
use super::statistics::{ColumnStatistics, Moments, TableStatistics, Values};

/// A run file has the shortest text with so many digits of a deviation or a weight, and as many of a mean as its deviation has:
/// more would only take room.
const DIGITS: usize = 6;

/// The run that reads tables of these statistics, which are of so many members together; as it is where it has been founded
/// before.
///
/// # Errors
/// When there is nothing to predict, or nothing to predict it from, or the run file would grow too large.
pub(super) fn found(
    mut manifest: RunManifest,
    statistics: &TableStatistics,
    members: usize,
) -> Result<RunManifest, TableError> {
    if manifest.model.inputs() > 0 {
        return Ok(manifest);
    }
    columns(&mut manifest, statistics)?;
    let classes = target(&mut manifest, &statistics.target)?;
    // Of its own rows alone a founder does not know what is many.
    if manifest.synchronous.is_on() && members > 1 {
        manifest.table.rows = statistics.rows;
        manifest.table.members = u32::try_from(members).unwrap_or(u32::MAX);
    }
    let inputs = manifest.table.inputs();
    if inputs == 0 {
        return Err(TableError::NoInputs(manifest.table.target));
    }
    // No other kind reads tables, which the last check says.
    if let ModelSpec::Mlp(model) = &mut manifest.model {
        (model.inputs, model.classes) = (inputs as u32, classes as u32);
    }
    let columns = manifest.table.numbers.len() + manifest.table.categories.len();
    if columns > TABLE_COLUMNS_MAX {
        return Err(TableError::TooManyColumns { columns, most: TABLE_COLUMNS_MAX });
    }
    // The founder's peer id is still to come.
    let bytes = manifest.canonical_text().len() + 64;
    if bytes > MANIFEST_BYTES_MAX {
        return Err(TableError::TooLarge { bytes, most: MANIFEST_BYTES_MAX });
    }
    manifest.validate()?;
    Ok(manifest)
}

fn columns(manifest: &mut RunManifest, statistics: &TableStatistics) -> Result<(), TableError> {
    let table = &mut manifest.table;
    let is_open = table.numbers.is_empty() && table.categories.is_empty();
    for ColumnStatistics { name, missing, values } in &statistics.columns {
        match values {
            Values::Numbers(_) => {
                if is_open {
                    table.numbers.push(name.clone());
                } else if !table.numbers.contains(name) {
                    let (column, path) = (name.clone(), statistics.source.clone());
                    return Err(TableError::OtherKind(column, path));
                }
                if *missing > 0.0 && table.missing == MissingNumbers::Indicator && !table.indicators.contains(name) {
                    table.indicators.push(name.clone());
                }
            }
            Values::Categories(found) => {
                let found = || sorted(found.iter().cloned().collect());
                match table.categories.iter_mut().find(|column| column.first() == Some(name)) {
                    Some(column) if column.len() == 1 => column.extend(found()),
                    Some(_) => {}
                    None => table.categories.push([vec![name.clone()], found()].concat()),
                }
            }
            Values::None | Values::Classes(_) => {}
        }
    }
    // Statistics may have another order than the run file.
    let numbers = table.numbers.iter().map(|name| mean_and_deviation(name, statistics));
    (table.means, table.deviations) = numbers.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    // Named without values, and nobody has any.
    table.categories.retain(|column| column.len() > 1);
    Ok(())
}

/// Of the column of this name.
fn mean_and_deviation(name: &str, statistics: &TableStatistics) -> Result<(f64, f64), TableError> {
    let (column, path) = (name.to_owned(), statistics.source.clone());
    match statistics.columns.iter().find(|column| column.name == name).map(|column| &column.values) {
        Some(Values::Numbers(moments)) => Ok(rounded_moments(moments)),
        // A column without values says nothing; one that the run file names is an input all the same.
        Some(Values::None) => Ok((0.0, 1.0)),
        Some(_) => Err(TableError::OtherKind(column, path)),
        None => Err(TableError::NotInStatistics(path, column)),
    }
}

/// Gives the number of classes, 1 for a number.
fn target(manifest: &mut RunManifest, target: &ColumnStatistics) -> Result<usize, TableError> {
    let (table, data) = (&mut manifest.table, &mut manifest.data);
    let column = target.name.clone();
    match (table.task, &target.values) {
        (TableTask::Classification, Values::Classes(counts)) => {
            if data.class_names.is_empty() {
                data.class_names = sorted(counts.keys().cloned().collect());
            }
            let classes = data.class_names.len();
            if classes < 2 {
                return Err(TableError::TooFewClasses(column, classes));
            }
            if table.balance_classes && table.class_weights.is_empty() {
                let mut rows = vec![0.0; classes];
                for (class, count) in counts {
                    if let Some(class) = place_among(&data.class_names, class) {
                        rows[class] += count;
                    }
                }
                rows.iter_mut().for_each(|count: &mut f64| *count = count.max(1.0));
                let all: f64 = rows.iter().sum();
                table.class_weights = rows.iter().map(|count| rounded(all / (classes as f64 * count))).collect();
            }
            Ok(classes)
        }
        (TableTask::Regression, Values::Numbers(moments)) => {
            (table.target_mean, table.target_deviation) = rounded_moments(moments);
            Ok(1)
        }
        _ => Err(TableError::TooFewClasses(column, 0)),
    }
}

/// By value where all are numbers, else by letters.
fn sorted(mut names: Vec<String>) -> Vec<String> {
    let number = |name: &String| name.parse::<f64>().unwrap_or(f64::INFINITY);
    if names.iter().all(|name| number(name).is_finite()) {
        names.sort_by(|left, right| number(left).total_cmp(&number(right)));
    } else {
        names.sort();
    }
    names
}

/// (mean, deviation), the mean to a hundred-thousandth of the deviation or so: a column of times is far from zero, and all of an
/// hour would be one input if the mean had six digits of its own.
fn rounded_moments(moments: &Moments) -> (f64, f64) {
    let deviation = rounded(moments.deviation());
    let digits = (moments.mean.abs() / deviation).log10().floor().max(0.0) as usize + DIGITS;
    (rounded_to(moments.mean, digits), deviation)
}

fn rounded(value: f64) -> f64 {
    rounded_to(value, DIGITS)
}

/// To so many digits; an `f64` has no more than 17.
fn rounded_to(value: f64, digits: usize) -> f64 {
    let digits = digits.min(17);
    format!("{value:.*e}", digits - 1).parse().unwrap_or(value)
}
