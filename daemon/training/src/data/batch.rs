//! What a model reads at once: windows of tokens, images with labels, or rows of a table.

use std::ops::Range;

use candle_core::{Device, Result, Tensor, bail};

use super::{Image, ImageShape, Window};

/// Examples of one kind and size.
#[derive(Clone, Debug, PartialEq)]
pub enum Batch {
    /// For language models.
    Tokens(TokenBatch),
    /// For classifiers.
    Images(ImageBatch),
    /// For what predicts from tables.
    Rows(RowBatch),
}

/// Several windows of one length, as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBatch {
    /// Input token ids, `[sequences, length]` row-major.
    pub inputs: Vec<u32>,
    /// The token after each input, of the same shape.
    pub targets: Vec<u32>,
    /// Number of windows.
    pub sequences: usize,
}

/// Several images of one size, each with its class.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageBatch {
    /// Brightness, `[images, channels, height, width]` row-major.
    pub pixels: Vec<f32>,
    /// `[channels, height, width]`.
    pub shape: [usize; 3],
    /// The class of each image.
    pub labels: Vec<u32>,
}

/// Several rows of a table, each with what is to be predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct RowBatch {
    /// `[rows, width]` row-major.
    pub inputs: Vec<f32>,
    /// Inputs of a row.
    pub width: usize,
    /// One for each row.
    pub targets: RowTargets,
}

/// What is to be predicted of rows.
#[derive(Clone, Debug, PartialEq)]
pub enum RowTargets {
    /// Which class.
    Classes {
        /// The class of each row.
        labels: Vec<u32>,
        /// What each row counts in the loss that is trained by.
        weights: Vec<f32>,
    },
    /// A number, in standard deviations from the mean.
    Numbers(Vec<f32>),
}

impl RowTargets {
    fn len(&self) -> usize {
        match self {
            RowTargets::Classes { labels, .. } => labels.len(),
            RowTargets::Numbers(numbers) => numbers.len(),
        }
    }

    fn part(&self, rows: Range<usize>) -> RowTargets {
        match self {
            RowTargets::Classes { labels, weights } => {
                RowTargets::Classes { labels: labels[rows.clone()].to_vec(), weights: weights[rows].to_vec() }
            }
            RowTargets::Numbers(numbers) => RowTargets::Numbers(numbers[rows].to_vec()),
        }
    }
}

impl Batch {
    /// The batch of `windows` of bytes or tokens.
    ///
    /// # Panics
    /// When there is none.
    pub fn of(windows: &[Window]) -> Batch {
        assert!(!windows.is_empty(), "a batch has at least one window");
        Batch::Tokens(TokenBatch {
            inputs: windows.iter().flat_map(|window| &window[..window.len() - 1]).copied().collect(),
            targets: windows.iter().flat_map(|window| &window[1..]).copied().collect(),
            sequences: windows.len(),
        })
    }

    /// The batch of `images` of this shape, black as 0 and white as 1.
    pub fn of_images(images: &[Image], shape: ImageShape) -> Batch {
        let mut pixels = Vec::with_capacity(images.len() * shape.values());
        for image in images {
            pixels.extend(image.pixels.iter().map(|value| f32::from(*value) * (1.0 / 255.0)));
        }
        Batch::Images(ImageBatch {
            pixels,
            shape: [shape.channels, shape.height, shape.width],
            labels: images.iter().map(|image| image.label).collect(),
        })
    }

    /// Number of sequences, images or rows.
    pub fn examples(&self) -> usize {
        match self {
            Batch::Tokens(batch) => batch.sequences,
            Batch::Images(batch) => batch.labels.len(),
            Batch::Rows(batch) => batch.targets.len(),
        }
    }

    /// What a model should answer, in order: each next token, or the class of each image or row. Nothing where numbers are
    /// predicted.
    pub fn targets(&self) -> &[u32] {
        match self {
            Batch::Tokens(batch) => &batch.targets,
            Batch::Images(batch) => &batch.labels,
            Batch::Rows(RowBatch { targets: RowTargets::Classes { labels, .. }, .. }) => labels,
            Batch::Rows(_) => &[],
        }
    }

    /// Number of predictions: tokens, images or rows.
    pub fn predictions(&self) -> usize {
        if let Batch::Rows(batch) = self { batch.targets.len() } else { self.targets().len() }
    }

    /// Some of the examples.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn part(&self, examples: Range<usize>) -> Batch {
        match self {
            Batch::Tokens(batch) => {
                let length = batch.length();
                let tokens = examples.start * length..examples.end * length;
                let (inputs, targets) = (batch.inputs[tokens.clone()].to_vec(), batch.targets[tokens].to_vec());
                Batch::Tokens(TokenBatch { inputs, targets, sequences: examples.len() })
            }
            Batch::Images(batch) => {
                let size: usize = batch.shape.iter().product();
                let pixels = batch.pixels[examples.start * size..examples.end * size].to_vec();
                Batch::Images(ImageBatch { pixels, shape: batch.shape, labels: batch.labels[examples].to_vec() })
            }
            Batch::Rows(batch) => {
                let inputs = batch.inputs[examples.start * batch.width..examples.end * batch.width].to_vec();
                Batch::Rows(RowBatch { inputs, width: batch.width, targets: batch.targets.part(examples) })
            }
        }
    }

    /// The parts that are computed one after the other, at most `examples_max` examples each.
    pub(crate) fn parts(&self, examples_max: usize) -> impl Iterator<Item = Batch> + '_ {
        let (examples, most) = (self.examples(), examples_max.max(1));
        (0..examples).step_by(most).map(move |first| self.part(first..(first.saturating_add(most)).min(examples)))
    }

    /// The windows of tokens.
    ///
    /// # Errors
    /// When it holds something else.
    pub fn tokens(&self) -> Result<&TokenBatch> {
        match self {
            Batch::Tokens(batch) => Ok(batch),
            Batch::Images(_) => bail!("this model reads tokens, but the batch holds images"),
            Batch::Rows(_) => bail!("this model reads tokens, but the batch holds rows of a table"),
        }
    }

    /// The images.
    ///
    /// # Errors
    /// When it holds something else.
    pub fn images(&self) -> Result<&ImageBatch> {
        match self {
            Batch::Images(batch) => Ok(batch),
            Batch::Tokens(_) => bail!("this model reads images, but the batch holds tokens"),
            Batch::Rows(_) => bail!("this model reads images, but the batch holds rows of a table"),
        }
    }
}

impl TokenBatch {
    /// Tokens of a window, its last target not counted.
    pub fn length(&self) -> usize {
        self.inputs.len() / self.sequences
    }

    /// The inputs `[sequences, length]` of `u32` on `device`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        Tensor::from_slice(&self.inputs, (self.sequences, self.length()), device)
    }
}

impl ImageBatch {
    /// The pixels `[images, channels, height, width]` on `device`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        let [channels, height, width] = self.shape;
        Tensor::from_slice(&self.pixels, (self.labels.len(), channels, height, width), device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_together_are_the_whole() -> Result<()> {
        let windows: Vec<Window> = (0..5).map(|first| (first..first + 4).collect()).collect();
        let whole = Batch::of(&windows);
        assert_eq!(whole.part(1..3), Batch::of(&windows[1..3]));
        assert_eq!((whole.examples(), whole.predictions(), whole.tokens()?.length()), (5, 15, 3));
        let images =
            ImageBatch { pixels: (0..12).map(|value| value as f32).collect(), shape: [1, 2, 2], labels: vec![7, 8, 9] };
        let last = Batch::Images(images).part(2..3);
        assert_eq!(last.images()?.pixels, [8.0, 9.0, 10.0, 11.0]);
        assert_eq!(last.targets(), [9]);
        assert!(last.tokens().is_err() && whole.images().is_err());
        Ok(())
    }
}
