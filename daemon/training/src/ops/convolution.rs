//! A 3 × 3 convolution with a border of zeros, then bias, ReLU and 2 × 2 max pooling: one image at a time, over plain
//! slices.
//!
//! As a matrix product of the weights with the image's patches (im2col; Chellapilla, Puri and Simard 2006). Rows of the
//! padded image follow each other, so a row of patches is one stretch of a channel, moved: copies and additions are long
//! ones. At the end of each line that leaves two columns which belong to no pixel; pooling leaves them out, and their
//! gradient is zero.

use candle_core::{Result, Tensor};

use super::product::{Matrix, MatrixMut, Write, multiply};
use super::vector::vectorised;

/// Places of a 3 × 3 kernel.
const TAPS: usize = 9;

/// No pixel passed on its value: ReLU cut them all.
const NONE: u8 = 4;

/// The sizes of one convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Convolution {
    /// Channels that it reads.
    pub(crate) inputs: usize,
    /// Channels that it makes.
    pub(crate) outputs: usize,
    /// Of what it reads, at least 2.
    pub(crate) height: usize,
    /// Of what it reads, at least 2.
    pub(crate) width: usize,
}

/// Memory that one image after the other uses.
pub(crate) struct Scratch {
    /// `[inputs · 9, lines]`.
    patches: Vec<f32>,
    /// `[outputs, lines]`, before pooling.
    outputs: Vec<f32>,
}

impl Convolution {
    /// Values of one image's result `[outputs, height / 2, width / 2]`.
    pub(crate) fn pooled(&self) -> usize {
        self.outputs * (self.height / 2) * (self.width / 2)
    }

    fn line(&self) -> usize {
        self.width + 2
    }

    /// Values of all lines of a channel, their two spare columns included.
    fn lines(&self) -> usize {
        self.height * self.line()
    }

    /// Values of a channel with its border.
    fn plane(&self) -> usize {
        (self.height + 2) * self.line()
    }

    /// Values of a padded image. The last row of patches of the last channel reads two values beyond its plane.
    fn padded(&self) -> usize {
        self.inputs * self.plane() + 2
    }

    pub(crate) fn scratch(&self) -> Scratch {
        let patches = vec![0.0; self.inputs * TAPS * self.lines()];
        Scratch { patches, outputs: vec![0.0; self.outputs * self.lines()] }
    }

    /// `image` `[inputs, height, width]` with a border of zeros.
    pub(crate) fn pad(&self, image: &[f32]) -> Vec<f32> {
        let mut padded = vec![0.0; self.padded()];
        let channels = image.chunks_exact(self.height * self.width);
        for (channel, plane) in channels.zip(padded.chunks_exact_mut(self.plane())) {
            let lines = plane[self.line()..].chunks_exact_mut(self.line());
            for (line, place) in channel.chunks_exact(self.width).zip(lines) {
                place[1..=self.width].copy_from_slice(line);
            }
        }
        padded
    }

    /// What lies within the border of `padded`: `[inputs, height, width]`.
    fn within_border(&self, padded: &[f32]) -> Vec<f32> {
        let mut image = Vec::with_capacity(self.inputs * self.height * self.width);
        for plane in padded.chunks_exact(self.plane()).take(self.inputs) {
            let lines = plane[self.line()..].chunks_exact(self.line()).take(self.height);
            lines.for_each(|line| image.extend_from_slice(&line[1..=self.width]));
        }
        image
    }

    /// Where in a padded image each row of patches begins, in the order of the weights.
    fn starts(&self) -> impl Iterator<Item = usize> + use<> {
        let (plane, line) = (self.plane(), self.line());
        (0..self.inputs * TAPS).map(move |row| {
            let (channel, tap) = (row / TAPS, row % TAPS);
            channel * plane + tap / 3 * line + tap % 3
        })
    }

    fn fill_patches(&self, padded: &[f32], patches: &mut [f32]) {
        for (start, row) in self.starts().zip(patches.chunks_exact_mut(self.lines())) {
            row.copy_from_slice(&padded[start..start + row.len()]);
        }
    }

    /// Writes the result for a padded image to `pooled` `[outputs, height / 2, width / 2]`, and which of its four pixels
    /// each came from to `chosen`.
    pub(crate) fn forward(
        &self,
        weights: &[f32],
        biases: &[f32],
        padded: &[f32],
        scratch: &mut Scratch,
        pooled: &mut [f32],
        chosen: &mut [u8],
    ) {
        self.fill_patches(padded, &mut scratch.patches);
        let (depth, lines) = (self.inputs * TAPS, self.lines());
        multiply(
            MatrixMut::dense(&mut scratch.outputs, self.outputs, lines),
            Write::Replace,
            1.0,
            Matrix::dense(weights, self.outputs, depth),
            Matrix::dense(&scratch.patches, depth, lines),
        );
        let size = pooled.len() / self.outputs;
        let places = pooled.chunks_exact_mut(size).zip(chosen.chunks_exact_mut(size));
        for ((channel, bias), (pooled, chosen)) in scratch.outputs.chunks_exact(lines).zip(biases).zip(places) {
            pool(channel, self.line(), self.width / 2, *bias, pooled, chosen);
        }
    }

    /// Adds the gradients of weights and biases, and returns that of the image `[inputs, height, width]` where wanted.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn backward(
        &self,
        weights: &[f32],
        padded: &[f32],
        chosen: &[u8],
        to_pooled: &[f32],
        scratch: &mut Scratch,
        to_weights: &mut [f32],
        to_biases: &mut [f32],
        of_image: bool,
    ) -> Option<Vec<f32>> {
        let (depth, lines, size) = (self.inputs * TAPS, self.lines(), to_pooled.len() / self.outputs);
        self.fill_patches(padded, &mut scratch.patches);
        let sources = to_pooled.chunks_exact(size).zip(chosen.chunks_exact(size));
        let channels = scratch.outputs.chunks_exact_mut(lines).zip(to_biases);
        for ((channel, to_bias), (to_pooled, chosen)) in channels.zip(sources) {
            unpool(to_pooled, chosen, self.line(), self.width / 2, channel);
            let passed = to_pooled.iter().zip(chosen).filter(|(_, chosen)| **chosen != NONE);
            *to_bias += passed.map(|(value, _)| value).sum::<f32>();
        }
        let incoming = Matrix::dense(&scratch.outputs, self.outputs, lines);
        let patches = Matrix::dense(&scratch.patches, depth, lines).transposed();
        multiply(MatrixMut::dense(to_weights, self.outputs, depth), Write::Add, 1.0, incoming, patches);
        of_image.then(|| {
            let weights = Matrix::dense(weights, self.outputs, depth).transposed();
            let place = MatrixMut::dense(&mut scratch.patches, depth, lines);
            multiply(place, Write::Replace, 1.0, weights, incoming);
            let mut to_padded = vec![0.0; self.padded()];
            for (start, row) in self.starts().zip(scratch.patches.chunks_exact(lines)) {
                add(&mut to_padded[start..start + lines], row);
            }
            self.within_border(&to_padded)
        })
    }
}

/// The same of candle's operations, for `images` `[images, inputs, height, width]`: on any device, and the reference in the
/// tests.
///
/// # Errors
/// When the shapes do not fit or memory runs out.
pub(crate) fn composed(images: &Tensor, weights: &Tensor, biases: &Tensor) -> Result<Tensor> {
    let convolved = images.conv2d(weights, 1, 1, 1, 1)?;
    let (count, channels, height, width) = convolved.dims4()?;
    // Candle's own backward of pooling gives a quarter of the gradient (0.11: it takes the mean of a mask), so the largest
    // of two and two is taken here.
    let (rows, columns) = (height / 2, width / 2);
    let even = convolved.narrow(2, 0, 2 * rows)?.narrow(3, 0, 2 * columns)?.contiguous()?;
    let lines = even.reshape((count * channels, rows, 2, 2 * columns))?;
    let upper =
        lines.narrow(2, 0, 1)?.maximum(&lines.narrow(2, 1, 1)?)?.reshape((count * channels, rows, columns, 2))?;
    let pooled = upper.narrow(3, 0, 1)?.maximum(&upper.narrow(3, 1, 1)?)?.reshape((count, channels, rows, columns))?;
    pooled.broadcast_add(&biases.reshape((1, channels, 1, 1))?)?.relu()
}

vectorised! {
    fn add(place: &mut [f32], values: &[f32]) {
        place.iter_mut().zip(values).for_each(|(place, value)| *place += value);
    }
}

vectorised! {
    /// The largest of each four pixels plus `bias`, or 0 where that is larger, and which it was.
    fn pool(channel: &[f32], line: usize, columns: usize, bias: f32, pooled: &mut [f32], chosen: &mut [u8]) {
        let places = pooled.chunks_exact_mut(columns).zip(chosen.chunks_exact_mut(columns));
        for ((pooled, chosen), lines) in places.zip(channel.chunks_exact(2 * line)) {
            let (upper, lower) = (lines[..2 * columns].chunks_exact(2), lines[line..][..2 * columns].chunks_exact(2));
            for ((upper, lower), (pooled, chosen)) in upper.zip(lower).zip(pooled.iter_mut().zip(chosen)) {
                let (left, first) = if upper[1] > upper[0] { (upper[1], 1) } else { (upper[0], 0) };
                let (right, second) = if lower[1] > lower[0] { (lower[1], 3) } else { (lower[0], 2) };
                let (largest, place) = if right > left { (right, second) } else { (left, first) };
                let value = largest + bias;
                *pooled = if value > 0.0 { value } else { 0.0 };
                *chosen = if value > 0.0 { place } else { NONE };
            }
        }
    }
}

vectorised! {
    /// Each gradient at the pixel that was chosen, zero everywhere else.
    fn unpool(to_pooled: &[f32], chosen: &[u8], line: usize, columns: usize, channel: &mut [f32]) {
        let sources = to_pooled.chunks_exact(columns).zip(chosen.chunks_exact(columns));
        let mut lines = channel.chunks_exact_mut(2 * line);
        for ((to_pooled, chosen), lines) in sources.zip(&mut lines) {
            let (upper, lower) = lines.split_at_mut(line);
            upper[2 * columns..].fill(0.0);
            lower[2 * columns..].fill(0.0);
            let pixels = upper.chunks_exact_mut(2).zip(lower.chunks_exact_mut(2));
            for ((value, chosen), (upper, lower)) in to_pooled.iter().zip(chosen).zip(pixels) {
                upper[0] = if *chosen == 0 { *value } else { 0.0 };
                upper[1] = if *chosen == 1 { *value } else { 0.0 };
                lower[0] = if *chosen == 2 { *value } else { 0.0 };
                lower[1] = if *chosen == 3 { *value } else { 0.0 };
            }
        }
        lines.into_remainder().fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::ops::gradient_check::{random, random_values};

    fn close(actual: &[f32], expected: &Tensor) -> Result<()> {
        let expected = expected.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(actual.len(), expected.len());
        let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let error = actual.iter().zip(&expected).fold(0.0_f32, |error, (left, right)| error.max((left - right).abs()));
        assert!(error <= 2e-5 * largest, "{error} of {largest}");
        Ok(())
    }

    #[test]
    fn results_and_gradients_agree_with_autograd() -> Result<()> {
        for (inputs, outputs, height, width) in [(1, 3, 4, 6), (3, 5, 8, 8), (16, 32, 14, 14), (2, 2, 2, 2)] {
            let convolution = Convolution { inputs, outputs, height, width };
            let image = random(&[inputs, height, width], 1);
            let (weights, biases) = (random(&[outputs, inputs, 3, 3], 2), random(&[outputs], 3));
            let shape = [outputs, height / 2, width / 2];
            let values = |variable: &Var| variable.flatten_all()?.to_vec1::<f32>();
            let (kernel, padded) = (values(&weights)?, convolution.pad(&values(&image)?));
            let mut scratch = convolution.scratch();
            let (mut pooled, mut chosen) = (vec![f32::NAN; convolution.pooled()], vec![9; convolution.pooled()]);
            convolution.forward(&kernel, &values(&biases)?, &padded, &mut scratch, &mut pooled, &mut chosen);
            let expected = composed(&image.unsqueeze(0)?, &weights, &biases)?.squeeze(0)?;
            close(&pooled, &expected)?;

            let incoming = random_values(pooled.len(), 4);
            let weighed = (&expected * Tensor::from_slice(&incoming, &shape, &Device::Cpu)?)?.sum_all()?;
            let gradients = weighed.backward()?;
            let (mut to_weights, mut to_biases) = (vec![0.0; outputs * inputs * TAPS], vec![0.0; outputs]);
            let to_image = convolution.backward(
                &kernel,
                &padded,
                &chosen,
                &incoming,
                &mut scratch,
                &mut to_weights,
                &mut to_biases,
                true,
            );
            for (actual, variable) in
                [(to_weights, &weights), (to_biases, &biases), (to_image.expect("wanted"), &image)]
            {
                close(&actual, gradients.get(variable).expect("every argument has a gradient"))?;
            }
        }
        Ok(())
    }

    #[test]
    fn odd_lines_and_columns_are_left_out_by_pooling_and_get_no_gradient_of_it() {
        let convolution = Convolution { inputs: 1, outputs: 1, height: 5, width: 7 };
        let image = random_values(35, 1);
        let even: Vec<f32> = image.chunks(7).flat_map(|line| line.iter().copied()).collect();
        let padded = convolution.pad(&even);
        // The identity: each result is the largest of its four pixels.
        let mut kernel = vec![0.0; 9];
        kernel[4] = 1.0;
        let mut scratch = convolution.scratch();
        let (mut pooled, mut chosen) = (vec![0.0; 6], vec![0; 6]);
        convolution.forward(&kernel, &[10.0], &padded, &mut scratch, &mut pooled, &mut chosen);
        let largest = image[0].max(image[1]).max(image[7]).max(image[8]);
        assert_eq!(pooled[0], largest + 10.0);
        let (mut to_weights, mut to_biases) = (vec![0.0; 9], vec![0.0]);
        let ones = vec![1.0; 6];
        let to_image =
            convolution.backward(&kernel, &padded, &chosen, &ones, &mut scratch, &mut to_weights, &mut to_biases, true);
        let to_image = to_image.expect("wanted");
        assert_eq!((to_image.iter().sum::<f32>(), to_biases[0]), (6.0, 6.0));
        assert!(to_image[28..].iter().all(|value| *value == 0.0), "the fifth line is in no pool");
        assert!(to_image.chunks(7).all(|line| line[6] == 0.0), "the seventh column is in no pool");
    }
}
