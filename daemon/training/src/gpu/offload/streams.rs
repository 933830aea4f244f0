//! Streams between stages: they wait in the machine's memory, and come and go while the GPU computes other microbatches.

use std::sync::Arc;

use candle_core::Result;

use crate::gpu::copies::copy;
use crate::gpu::{Accelerator, Kind, Memory, Span};
use crate::replica::Transfer;

/// What the GPU holds of streams on their way, each of a microbatch: two places of an input and of an output's gradient, and two
/// that leave.
pub(super) const STREAMS_UNDER_WAY: usize = 6;

/// A stream of one microbatch, or its gradient.
pub(super) enum Stream {
    Here(Arc<Vec<f32>>),
    Coming(Transfer<Vec<f32>>),
}

impl Stream {
    /// Waits for it.
    pub(super) fn values(&mut self) -> Result<Arc<Vec<f32>>> {
        let values = match std::mem::replace(self, Stream::Here(Arc::default())) {
            Stream::Here(values) => values,
            Stream::Coming(transfer) => Arc::new(transfer.wait()?),
        };
        *self = Stream::Here(values.clone());
        Ok(values)
    }
}

/// Those that a stage gives, or gives back, in the order of microbatches.
#[derive(Default)]
pub(super) struct Leaving(Vec<Stream>);

impl Leaving {
    /// One more, while at most two are under way.
    pub(super) fn push(&mut self, stream: Transfer<Vec<f32>>) -> Result<()> {
        self.0.last_mut().map(Stream::values).transpose()?;
        self.0.push(Stream::Coming(stream));
        Ok(())
    }

    pub(super) fn values(&mut self, number: usize) -> Result<Arc<Vec<f32>>> {
        self.0[number].values()
    }
}

/// Streams that a microbatch reads.
#[derive(Default)]
struct Arriving {
    /// Where there are some.
    transfer: Option<Transfer<Vec<f32>>>,
    /// Where each of them will be.
    places: Vec<Span>,
}

/// Where streams arrive: two places, which microbatches take by turns.
#[derive(Default)]
pub(super) struct Arrivals([Option<Arc<Memory>>; 2]);

impl Arrivals {
    /// Has each of so many microbatches computed once the streams that it reads have arrived, and those of the next begin to come
    /// before.
    pub(super) fn each(
        &mut self,
        device: &dyn Accelerator,
        count: usize,
        mut streams: impl FnMut(usize) -> Result<Vec<Arc<Vec<f32>>>>,
        mut compute: impl FnMut(usize, &[Span]) -> Result<()>,
    ) -> Result<()> {
        let mut next = Some(self.begin(device, 0, streams(0)?)?);
        for number in 0..count {
            let Arriving { transfer, places } = next.take().expect("it has begun to come");
            transfer.map(Transfer::wait).transpose()?;
            let further = number + 1;
            next = (further < count).then(|| self.begin(device, further, streams(further)?)).transpose()?;
            compute(number, &places)?;
        }
        Ok(())
    }

    /// Begins to bring these streams, which are of one length.
    fn begin(&mut self, device: &dyn Accelerator, number: usize, streams: Vec<Arc<Vec<f32>>>) -> Result<Arriving> {
        let Some(length) = streams.first().map(|stream| stream.len()) else { return Ok(Arriving::default()) };
        let place = &mut self.0[number % 2];
        // Where an upload of a batch that failed is still under way, somebody else holds the place, too.
        let is_free = |place: &mut Arc<Memory>| place.span().values >= 2 * length && Arc::get_mut(place).is_some();
        if !place.as_mut().is_some_and(is_free) {
            *place = None;
            *place = Some(Arc::new(device.allocate(Kind::F32, 2 * length)?));
        }
        let place = place.clone().expect("it has just been made");
        let places = (0..streams.len()).map(|index| place.span().part(index * length..(index + 1) * length)).collect();
        let values = streams.len() * length;
        let write = move |to: &mut [f32]| {
            to.chunks_exact_mut(length).zip(&streams).for_each(|(to, stream)| copy(stream, to));
            Vec::new()
        };
        Ok(Arriving { transfer: Some(device.begin_upload(Box::new(write), values, place)?), places })
    }
}
