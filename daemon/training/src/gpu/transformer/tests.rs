//! Attention by products, of 16 bits.

use super::memory::GpuHeads;
use super::*;
use crate::gpu::bytes_of_mut;
use crate::gpu::tests::devices;
use crate::gpu::weights::WeightMemory;

/// Many queries add to each key's gradient a little each: rounded after each addition it would stop growing.
#[test]
fn gradients_of_keys_and_values_are_rounded_once() -> Result<()> {
    let (kind, sequences) = (Kind::Bf16, 2);
    // 32 heads share a key's, and 40 queries of each are attended five at a time.
    let (heads, key_heads, head_width, length) = (64, 2, 6, 40);
    let spec = TransformerModel {
        layers: 1,
        width: 16,
        heads,
        key_value_heads: key_heads,
        head_width,
        context: length,
        ..TransformerModel::default()
    };
    let (sharing, head_width, length) = ((heads / key_heads) as f32, head_width as usize, length as usize);
    let tokens = vec![0; sequences * length];
    let batch = TokenBatch { inputs: tokens.clone(), targets: tokens, sequences };
    for device in devices() {
        let model = GpuModel::new(device.clone(), &spec, kind, 0)?;
        let attention = attention_of(&spec, &batch)?;
        let scratch = Scratch::new(&model, &attention, false)?;
        let (memory, mut embedded) = (WeightMemory::new(&*device, kind, 1)?, RowSums::default());
        let (weights, past, gradient) = (memory.weights(), 0, None);
        let gpu = Gpu {
            model: &model,
            attention,
            scratch: &scratch,
            weights: &weights,
            batch: &batch,
            past,
            gradient,
            embedded: &mut embedded,
        };
        let new_heads = || GpuHeads::new(&model, &attention, false);
        let (heads, to_heads) = (new_heads()?, new_heads()?);
        let of_queries = || device.allocate(kind, attention.rows() * attention.query_width());
        let (attended, to_attended) = (of_queries()?, of_queries()?);
        let fill = |memory: &Memory, value: &dyn Fn(usize) -> f32| {
            let values = (0..memory.span().values).map(|index| (value(index).to_bits() >> 16) as u16);
            device.upload(bytes_of(&values.collect::<Vec<_>>()), memory.span())
        };
        // A query sees all its keys alike, and the first key alone has a value.
        fill(&heads.query, &|_| 0.5)?;
        fill(&heads.value, &|index| if index / head_width % length == 0 { 1.0 } else { 0.0 })?;
        fill(&to_attended, &|_| 1.0)?;
        gpu.attend_back(&heads, attended.span(), to_attended.span(), &to_heads)?;
        let seen_by = |key: usize| (key..length).map(|query| 1.0 / (query + 1) as f32);
        let to_value = |key: usize| sharing * seen_by(key).sum::<f32>();
        let to_key = |key: usize| {
            let product = |share: f32| share * (if key == 0 { 1.0 } else { 0.0 } - share) * head_width as f32;
            sharing * 0.5 * attention.scale() * seen_by(key).map(product).sum::<f32>()
        };
        for (memory, expected) in [(&to_heads.value, &to_value as &dyn Fn(usize) -> f32), (&to_heads.key, &to_key)] {
            let mut found = vec![0_u16; memory.span().values];
            device.download(memory.span(), bytes_of_mut(&mut found))?;
            for (index, bits) in found.into_iter().enumerate() {
                let key = index / head_width % length;
                let (found, expected) = (f32::from_bits(u32::from(bits) << 16), expected(key));
                assert!((found - expected).abs() <= 0.01 * expected.abs(), "key {key}: {found} {expected}");
            }
        }
    }
    Ok(())
}
