//! A transformer in a GPU's memory that only reads: no gradient, no moments.

use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::manifest::TransformerModel;

use super::transformer::GpuTransformer;
use super::weights::WeightMemory;
use super::{Accelerator, Kind, SUM_BLOCKS};
use crate::data::Batch;
use crate::model::transformer::Decoder;
use crate::model::{Evaluation, StageSpec};

pub(crate) struct GpuReader {
    device: Arc<dyn Accelerator>,
    spec: TransformerModel,
    weights: WeightMemory,
}

impl GpuReader {
    /// Of the transformer of `spec` with these flat parameters.
    pub(crate) fn new(device: Arc<dyn Accelerator>, spec: &TransformerModel, parameters: &[f32]) -> Result<GpuReader> {
        let weights = WeightMemory::new(&*device, Kind::F32, parameters.len())?;
        weights.upload(&*device, 0, parameters)?;
        Ok(GpuReader { device, spec: spec.clone(), weights })
    }

    /// How well it predicts these.
    pub(crate) fn evaluate(&self, batches: impl Iterator<Item = Batch>) -> Result<Evaluation> {
        let (mut model, sums) = (self.transformer()?, self.device.allocate(Kind::F64, SUM_BLOCKS)?);
        let mut evaluation = Evaluation::default();
        for batch in batches {
            model.evaluate(&self.weights.weights(), batch.tokens()?, None)?;
            evaluation = evaluation.with(model.evaluation(batch.predictions(), sums.span())?);
        }
        Ok(evaluation)
    }

    /// What reads on in a text, and gives the logits of the next token.
    pub(crate) fn begin(&self) -> Result<impl FnMut(&[u32]) -> Result<Vec<f32>> + Send + '_> {
        let (mut model, mut decoder) = (self.transformer()?, Decoder::new(self.spec.context as usize));
        Ok(move |tokens: &[u32]| model.read(&self.weights.weights(), tokens, &mut decoder))
    }

    /// Where blocks take turns with what they keep.
    fn transformer(&self) -> Result<GpuTransformer> {
        GpuTransformer::new(self.device.clone(), &self.spec, &StageSpec::whole(&self.spec), (Kind::F32, true, 0))
    }
}
