//! A transformer as one stage of several: streams come from the machine's memory and go there.

use candle_core::Result;

use super::{Frame, GpuTransformer, Gradient, Weights};
use crate::data::TokenBatch;
use crate::gpu::{Span, bytes_of, bytes_of_mut};

impl GpuTransformer {
    /// The forward of a microbatch through this stage, of whose output the stream is returned where it does not predict. What
    /// its backward needs is kept.
    pub(crate) fn forward_stage(
        &mut self,
        weights: &Weights,
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
    ) -> Result<Option<Vec<f32>>> {
        let (frame, output) = self.through(weights, batch, input)?;
        let pass = self.work_mut().pass.take().expect("its forward is over");
        self.waiting.push_back((frame, pass));
        Ok(output)
    }

    /// The backward of the oldest forward that waits: from the losses, which are left in [`GpuTransformer::losses`], or from the
    /// gradient of the output. Returns that of the input where there is one.
    pub(crate) fn backward_stage(
        &mut self,
        weights: &Weights,
        to_output: Option<Vec<f32>>,
        share: f32,
        gradient: Gradient,
    ) -> Result<Option<Vec<f32>>> {
        let (frame, pass) = self.waiting.pop_front().expect("a backward comes after its forward");
        self.work_mut().pass = Some(pass);
        let stream = self.work().to_stream.span().first(frame.rows * self.width);
        match to_output {
            Some(to_output) => {
                self.device.upload(bytes_of(&to_output), stream)?;
                self.round_gradient(frame)?;
            }
            None => self.predict(frame, weights, Some((share, gradient)))?,
        }
        self.backward(frame, weights, gradient)?;
        let to_input = self.embedding.is_none().then(|| self.download(stream)).transpose()?;
        let pass = self.work_mut().pass.take().expect("its backward is over");
        self.free.push(pass);
        Ok(to_input)
    }

    /// Forgets forwards that wait for a backward that never comes.
    pub(crate) fn abandon(&mut self) {
        self.waiting.clear();
    }

    /// The output stream of a batch, or its losses and hits, which are left as by [`GpuTransformer::evaluate`].
    pub(crate) fn evaluate_stage(
        &mut self,
        weights: &Weights,
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
    ) -> Result<Option<Vec<f32>>> {
        let (frame, output) = self.through(weights, batch, input)?;
        if output.is_none() {
            self.predict(frame, weights, None)?;
        }
        Ok(output)
    }

    fn through(
        &mut self,
        weights: &Weights,
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
    ) -> Result<(Frame, Option<Vec<f32>>)> {
        let frame = self.begin(batch)?;
        let values = frame.rows * self.width;
        if let Some(input) = input {
            self.device.upload(bytes_of(&input), self.pass().streams[0].span().first(values))?;
        }
        self.forward(frame, weights)?;
        let last = self.pass().streams[self.blocks.len()].span().first(values);
        let output = self.end.is_none().then(|| self.download(last)).transpose()?;
        Ok((frame, output))
    }

    fn download(&self, from: Span) -> Result<Vec<f32>> {
        let mut values = vec![0.0_f32; from.values];
        self.device.download(from, bytes_of_mut(&mut values))?;
        Ok(values)
    }
}
