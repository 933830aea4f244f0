//! Images with labels: which are held out, which a node reads, and how they are shifted.
//!
//! A seeded draw holds out a part. With label skew each node draws how much of each class it reads from a Dirichlet
//! distribution, as in Hsu et al., "Measuring the Effects of Non-Identical Data Distribution" (arXiv 1909.06335): no node
//! has to know the others, and the same node reads the same images again after a restart.

use std::path::Path;
use std::path::PathBuf;

use murmur_protocol::manifest::{DataSource, ModelSpec, RunManifest};
use murmur_protocol::random::{Generator, Rng, RngExt, stream};

use super::files::JoinedFiles;
use super::held_out::{HeldOut, mark_of};
use super::image_shape::ImageShape;
use super::{CorpusError, idx, image_folders};

/// One image and what it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// `[channels, rows, columns]`, each from 0 to 255.
    pub pixels: Vec<u8>,
    /// The class, from 0.
    pub label: u32,
}

/// All images of a run that are here.
pub(crate) struct ImageSet {
    shape: ImageShape,
    pixels: JoinedFiles,
    labels: Vec<u32>,
    /// Numbers of the images that are trained on, in order.
    training: Vec<usize>,
    /// Numbers of the images that are held out, in the order in which they are evaluated.
    held_out: Vec<usize>,
}

impl ImageSet {
    /// The run's images at `paths`.
    ///
    /// # Errors
    /// When they are not what the run and its model read, or too few.
    pub(super) fn open(
        manifest: &RunManifest,
        paths: &[PathBuf],
        folder: Option<&Path>,
    ) -> Result<ImageSet, CorpusError> {
        let shape = ImageShape::of(&manifest.model);
        let (pixels, labels, marks) = match manifest.data.source {
            DataSource::Idx => from_idx(paths, &manifest.model, folder)?,
            _ => from_folders(manifest, paths, shape, folder)?,
        };
        let (training, held_out) = split(&marks, manifest)?;
        Ok(ImageSet { shape, pixels, labels, training, held_out })
    }

    /// Noise: as many images as a batch holds, and one that is held out.
    pub(super) fn made_up(manifest: &RunManifest) -> ImageSet {
        let (shape, count) = (ImageShape::of(&manifest.model), manifest.optimizer.batch_sequences as usize + 1);
        let mut generator = stream(manifest.run.seed, "made-up images", &[]);
        let mut pixels = vec![0; count * shape.values()];
        generator.fill_bytes(&mut pixels);
        let labels = (0..count as u32).map(|number| number % manifest.model.classes()).collect();
        let pixels = JoinedFiles::of([pixels.into()]);
        ImageSet { shape, pixels, labels, training: (0..count - 1).collect(), held_out: vec![count - 1] }
    }

    /// These images to train on, and the first of them held out.
    #[cfg(test)]
    pub(crate) fn of(shape: ImageShape, images: &[Image]) -> ImageSet {
        let pixels: Vec<u8> = images.iter().flat_map(|image| &image.pixels).copied().collect();
        let labels = images.iter().map(|image| image.label).collect();
        let pixels = JoinedFiles::of([pixels.into()]);
        ImageSet { shape, pixels, labels, training: (0..images.len()).collect(), held_out: vec![0] }
    }

    pub(crate) fn held_out(&self) -> &[usize] {
        &self.held_out
    }

    /// Numbers of the images that are trained on, in order.
    pub(crate) fn training(&self) -> &[usize] {
        &self.training
    }

    pub(crate) fn shape(&self) -> ImageShape {
        self.shape
    }

    /// Keeps one of `count` equal shares of the images to train on.
    pub(super) fn keep_share(&mut self, index: usize, count: usize) -> Result<(), CorpusError> {
        let images = self.training.len();
        let length = images / count;
        if length == 0 {
            return Err(CorpusError::TooFewImages("training", images));
        }
        self.training = self.training[index * length..][..length].to_vec();
        Ok(())
    }

    /// # Panics
    /// When there is no such image.
    pub(crate) fn image(&self, number: usize) -> Image {
        let values = self.shape.values();
        let pixels = self.pixels.read(number * values..(number + 1) * values).expect("an image of the set");
        Image { pixels, label: self.labels[number] }
    }

    /// The images that `node` trains on: all, or with label skew those that its draw leaves it.
    pub(crate) fn share_of(&self, node: &[u8; 32], seed: u64, label_skew: f64) -> Vec<usize> {
        if label_skew == 0.0 {
            return self.training.clone();
        }
        let mut generator = stream(seed, "label skew", &[node]);
        let classes = self.training.iter().map(|number| self.labels[*number] as usize + 1).max().unwrap_or(0);
        let weights: Vec<f64> = (0..classes).map(|_| logarithm_of_gamma(&mut generator, label_skew)).collect();
        let mut numbers = self.training.clone();
        shuffle(&mut numbers, &mut generator);
        // Of the classes that are here, that of the largest weight is read as a whole, the others in proportion.
        let mut left = vec![0.0; classes];
        numbers.iter().for_each(|number| left[self.labels[*number] as usize] += 1.0);
        let here = left.iter().zip(&weights).filter(|(count, _)| **count > 0.0);
        let largest = here.map(|(_, weight)| *weight).fold(f64::NEG_INFINITY, f64::max);
        let part = |(count, weight): (&f64, &f64)| (count * (weight - largest).exp().min(1.0)).ceil() as usize;
        let mut left: Vec<usize> = left.iter().zip(&weights).map(part).collect();
        numbers.retain(|number| {
            let left = &mut left[self.labels[*number] as usize];
            std::mem::replace(left, left.saturating_sub(1)) > 0
        });
        numbers
    }

    /// `image` moved by up to `pixels` in each direction; what comes in is black.
    pub(crate) fn shifted(&self, image: Image, pixels: u32, generator: &mut Generator) -> Image {
        let ImageShape { height: rows, width: columns, .. } = self.shape;
        let mut draw = || generator.random_range(0..=2 * u64::from(pixels)) as isize - pixels as isize;
        let (down, right) = (draw(), draw());
        let mut moved = vec![0; image.pixels.len()];
        let from = |to: usize, by: isize, end: usize| to.checked_add_signed(-by).filter(|from| *from < end);
        for (row, line) in moved.chunks_exact_mut(columns).enumerate() {
            let (channel, row) = (row / rows, row % rows);
            let Some(source) = from(row, down, rows) else { continue };
            let source = &image.pixels[(channel * rows + source) * columns..][..columns];
            for (column, value) in line.iter_mut().enumerate() {
                *value = from(column, right, columns).map_or(0, |column| source[column]);
            }
        }
        Image { pixels: moved, ..image }
    }
}

/// Pixels, labels, and what names each image.
type Found = (JoinedFiles, Vec<u32>, Vec<u64>);

fn from_idx(paths: &[PathBuf], model: &ModelSpec, folder: Option<&Path>) -> Result<Found, CorpusError> {
    let shape = ImageShape::of(model);
    let pairs = idx::open_pairs(paths, shape, folder)?;
    let (mut labels, mut marks) = (Vec::new(), Vec::new());
    for pair in &pairs {
        let of_pair = pair.labels.iter().map(|label| u32::from(*label));
        if let Some((index, label)) = of_pair.clone().enumerate().find(|(_, label)| *label >= model.classes()) {
            let (path, classes) = (pair.labels_path.clone(), model.classes() as usize);
            return Err(CorpusError::LabelOutOfRange { path, index, label, classes });
        }
        labels.extend(of_pair);
        let images = pair.pixels.chunks_exact(shape.values()).zip(pair.labels.iter());
        marks.extend(images.map(|(pixels, label)| mark_of(&[pixels, &[*label]])));
    }
    Ok((JoinedFiles::of(pairs.into_iter().map(|pair| pair.pixels)), labels, marks))
}

fn from_folders(
    manifest: &RunManifest,
    paths: &[PathBuf],
    shape: ImageShape,
    folder: Option<&Path>,
) -> Result<Found, CorpusError> {
    let named = &manifest.data.class_names;
    let names = if named.is_empty() { image_folders::class_names(paths)? } else { named.clone() };
    let classes = manifest.model.classes() as usize;
    if names.len() != classes {
        return Err(CorpusError::ClassCount { names: names.len(), classes });
    }
    let (pixels, labels, marks) = image_folders::open(paths, &names, shape, folder)?;
    Ok((JoinedFiles::of([pixels]), labels, marks))
}

/// (numbers to train on in order, numbers held out in the order of the draw).
fn split(marks: &[u64], manifest: &RunManifest) -> Result<(Vec<usize>, Vec<usize>), CorpusError> {
    let mut draw = HeldOut::new(manifest, "held-out images");
    marks.iter().for_each(|mark| draw.push(*mark));
    let (training, held_out) = draw.finish();
    for (part, numbers) in [("training", &training), ("validation", &held_out)] {
        if numbers.is_empty() {
            return Err(CorpusError::TooFewImages(part, marks.len()));
        }
    }
    Ok((training, held_out))
}

/// Fisher–Yates by hand: a library's shuffle may change its draws, which would move every node's data.
pub(crate) fn shuffle(numbers: &mut [usize], generator: &mut Generator) {
    for last in (1..numbers.len()).rev() {
        numbers.swap(last, generator.random_range(0..=last as u64) as usize);
    }
}

/// From 0 to below 1.
fn uniform(draws: &mut impl Rng) -> f64 {
    draws.random_range(0..1u64 << 53) as f64 / (1u64 << 53) as f64
}

/// The logarithm of a draw of the gamma distribution of this shape and scale 1 (Marsaglia and Tsang 2000); normalised, several
/// draws make one of a Dirichlet distribution. Draws of a small shape may be too small for an `f64`, their logarithms are not.
fn logarithm_of_gamma(generator: &mut Generator, shape: f64) -> f64 {
    if shape < 1.0 {
        let boost = (1.0 - uniform(generator)).ln() / shape;
        return logarithm_of_gamma(generator, shape + 1.0) + boost;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(generator);
        let v = (1.0 + c * x).powi(3);
        let u = 1.0 - uniform(generator);
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return (d * v).ln();
        }
    }
}

/// Box and Muller 1958.
fn normal(generator: &mut Generator) -> f64 {
    let radius = (-2.0 * (1.0 - uniform(generator)).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(generator)).cos()
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::MlpModel;

    use super::super::idx::tests::write_pair;
    use super::*;

    fn manifest() -> RunManifest {
        manifest_of(3)
    }

    fn manifest_of(classes: u32) -> RunManifest {
        let model = MlpModel { image_height: 2, image_width: 3, classes, ..MlpModel::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        manifest.data.source = DataSource::Idx;
        manifest.data.validation_fraction = 0.2;
        manifest
    }

    fn set(images: u8) -> ImageSet {
        let folder = tempfile::tempdir().expect("a folder");
        ImageSet::open(&manifest(), &write_pair(folder.path(), images, "set"), None).expect("images")
    }

    #[test]
    fn a_seeded_draw_holds_out_its_part_and_every_image_is_in_one_of_both() {
        let (images, again) = (set(200), set(200));
        assert!((30..=50).contains(&images.held_out().len()), "{}", images.held_out().len());
        let mut all = [&images.training[..], images.held_out()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
        assert_eq!(images.held_out(), again.held_out());
        let mut other = manifest();
        other.run.seed = 2;
        let mark = |image: Image| mark_of(&[&image.pixels, &[image.label as u8]]);
        let marks: Vec<u64> = (0..200).map(|number| mark(images.image(number))).collect();
        assert_eq!(split(&marks, &manifest()).expect("enough").1, images.held_out());
        assert_ne!(split(&marks, &other).expect("enough").1, images.held_out());
        assert_eq!(images.image(7), Image { pixels: vec![7; 6], label: 1 });
        assert!(split(&marks[..1], &manifest()).expect_err("one image").to_string().contains("validation part"));
    }

    #[test]
    fn an_image_that_is_added_redraws_none_of_those_held_out() {
        let (images, more) = (set(200), set(201));
        let held_out: Vec<usize> = more.held_out().iter().copied().filter(|number| *number < 200).collect();
        assert_eq!(held_out, images.held_out());
    }

    #[test]
    fn labels_that_the_model_has_no_class_for_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let manifest = manifest_of(2);
        let result = ImageSet::open(&manifest, &write_pair(folder.path(), 9, "set"), None);
        let message = result.err().expect("an error").to_string();
        assert!(
            message.ends_with("set-labels.idx: label 2 of image 2 is out of range: the model has 2 classes, from 0")
        );
    }

    #[test]
    fn skew_gives_nodes_classes_of_their_own_and_much_of_it_none() {
        let images = set(240);
        let counts = |node: u8, skew: f64| {
            let mut counts = [0; 3];
            images
                .share_of(&[node; 32], 1, skew)
                .iter()
                .for_each(|number| counts[images.labels[*number] as usize] += 1);
            counts
        };
        assert_eq!(counts(1, 0.0).iter().sum::<usize>(), images.training().len());
        assert_eq!(counts(1, 0.1), counts(1, 0.1));
        let spread = |skew| -> f64 {
            let share = |node| {
                let counts = counts(node, skew);
                *counts.iter().max().expect("three") as f64 / counts.iter().sum::<usize>() as f64
            };
            (0..40).map(share).sum::<f64>() / 40.0
        };
        // Even shares give 0.35, a single class 1.
        let (skewed, even) = (spread(0.1), spread(1000.0));
        assert!(skewed > 0.75 && even < 0.4, "{skewed} {even}");
        assert!((0..40).all(|node| !images.share_of(&[node; 32], 1, 0.01).is_empty()));
    }

    /// A trainer without an image would look for one for ever.
    #[test]
    fn a_node_has_images_however_few_classes_there_are_and_however_large_the_skew_is() {
        let shape = ImageShape { channels: 1, height: 1, width: 1 };
        for label in [0, 2] {
            let images = ImageSet::of(shape, &vec![Image { pixels: vec![0], label }; 4]);
            for node in 0..10_000_u32 {
                let mut key = [0; 32];
                key[..4].copy_from_slice(&node.to_le_bytes());
                assert_eq!(images.share_of(&key, 1, 0.01).len(), 4, "node {node}, all of class {label}");
            }
        }
    }

    #[test]
    fn a_gamma_draw_has_its_mean_and_variance() {
        let mut generator = stream(1, "test", &[]);
        for shape in [0.3, 1.0, 4.5] {
            let draws: Vec<f64> = (0..40_000).map(|_| logarithm_of_gamma(&mut generator, shape).exp()).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            assert!((mean / shape - 1.0).abs() < 0.03 && (variance / shape - 1.0).abs() < 0.1, "{mean} {variance}");
        }
    }

    #[test]
    fn shifts_move_an_image_within_its_frame() {
        let images = set(10);
        let mut generator = stream(1, "test", &[]);
        let image = Image { pixels: vec![1, 2, 3, 4, 5, 6], label: 0 };
        let mut seen: Vec<Vec<u8>> =
            (0..200).map(|_| images.shifted(image.clone(), 1, &mut generator).pixels).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 9);
        for expected in [vec![1, 2, 3, 4, 5, 6], vec![0, 0, 0, 0, 1, 2], vec![5, 6, 0, 0, 0, 0]] {
            assert!(seen.contains(&expected), "{expected:?} in {seen:?}");
        }
    }
}
