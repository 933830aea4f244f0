//! What a transformer computes with, and where its gradient goes: one flat vector of which all is trained, or a frozen base
//! with low-rank adapters beside some of its matrices ([`crate::model::lora`]).

use std::ops::Range;

use crate::model::lora::{Adapters, Frozen, LowRank};
use crate::ops::base_weights::BaseWeights;
use crate::ops::linear::{StoredMatrix, Weight};
use crate::ops::product::{Matrix, MatrixMut, Products, Write};
use crate::ops::{bias, embedding, linear};

/// All weights of a transformer, or of a stage of it. Ranges are places in its layout.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    values: Values<'a>,
    adapters: Option<Adapters<'a>>,
}

#[derive(Clone, Copy)]
enum Values<'a> {
    Trained(&'a [f32]),
    Frozen(&'a BaseWeights),
}

impl<'a> Weights<'a> {
    /// What is trained, flat: adapters where there is a base, else all.
    pub(super) fn of(base: Option<&'a Frozen>, trained: &'a [f32]) -> Weights<'a> {
        match base {
            Some(base) => Weights { values: Values::Frozen(base.weights()), adapters: Some(base.adapters(trained)) },
            None => Weights { values: Values::Trained(trained), adapters: None },
        }
    }

    /// The scale of a norm, or biases.
    pub(super) fn vector(self, range: &Range<usize>) -> &'a [f32] {
        match self.values {
            Values::Trained(values) => &values[range.clone()],
            Values::Frozen(base) => base.exact(range).expect("vectors are stored as they are"),
        }
    }

    /// `[outputs, inputs]`.
    fn matrix(self, range: &Range<usize>, inputs: usize) -> Weight<'a> {
        let outputs = range.len() / inputs;
        let exact = match self.values {
            Values::Trained(values) => &values[range.clone()],
            Values::Frozen(weights) => match weights.exact(range) {
                Some(exact) => exact,
                None => return Weight::Stored(StoredMatrix { weights, first: range.start, outputs, inputs }),
            },
        };
        Weight::Exact(Matrix::dense(exact, outputs, inputs))
    }

    /// The rows of the table in `range` that `tokens` name: `[tokens, width]`.
    pub(super) fn embed(self, range: &Range<usize>, tokens: &[u32], output: &mut [f32]) {
        let base = match self.values {
            Values::Trained(values) => return embedding::forward(output, &values[range.clone()], tokens),
            Values::Frozen(base) => base,
        };
        let width = output.len() / tokens.len();
        for (output, &token) in output.chunks_exact_mut(width).zip(tokens) {
            base.read(range.start + token as usize * width, output);
        }
    }

    /// The product of `input` `[rows, inputs]` with the weight in `range`: `[rows, outputs]`.
    pub(super) fn forward(
        self,
        products: Products,
        range: &Range<usize>,
        mut output: MatrixMut<'_>,
        write: Write,
        input: Matrix<'_>,
    ) {
        linear::forward(products, output.again(), write, input, self.matrix(range, input.width()));
        if let Some(adapters) = self.adapters {
            adapters.forward(products, range, output, input);
        }
    }

    /// The gradient of the input of such a product from that of its output, with what [`Gradient::of_weight`] needs.
    pub(super) fn to_input(
        self,
        products: Products,
        range: &Range<usize>,
        mut to_input: MatrixMut<'_>,
        write: Write,
        gradient: Matrix<'_>,
    ) -> LowRank {
        let inputs = range.len() / gradient.width();
        linear::to_input(products, to_input.again(), write, gradient, self.matrix(range, inputs));
        let adapters = self.adapters.map(|adapters| adapters.to_input(products, range, to_input, gradient));
        adapters.unwrap_or_default()
    }

    /// Where the gradient of what is trained goes.
    pub(super) fn gradient<'g>(self, values: &'g mut [f32], write: Write, products: Products) -> Gradient<'g>
    where
        'a: 'g,
    {
        Gradient { values, write, products, adapters: self.adapters }
    }
}

/// The gradient of what is trained, whether it is written or added to, and how it is computed.
pub(super) struct Gradient<'a> {
    values: &'a mut [f32],
    pub(super) write: Write,
    products: Products,
    adapters: Option<Adapters<'a>>,
}

impl Gradient<'_> {
    /// The same for products of a gradient with values far larger than others.
    pub(super) fn of_uneven(&mut self) -> Gradient<'_> {
        let products = self.products.of_uneven();
        Gradient { values: &mut *self.values, write: self.write, products, adapters: self.adapters }
    }

    /// The places of weights that are no matrices; `None` where these are frozen.
    pub(super) fn places<const COUNT: usize>(&mut self, ranges: [&Range<usize>; COUNT]) -> Option<[&mut [f32]; COUNT]> {
        let is_trained = self.adapters.is_none();
        let places = is_trained.then(|| self.values.get_disjoint_mut(ranges.map(Clone::clone)));
        places.map(|places| places.expect("tensors of a layout do not overlap"))
    }

    /// The place of one, and what happens to the values there.
    pub(super) fn place(&mut self, range: &Range<usize>) -> Option<(&mut [f32], Write)> {
        let write = self.write;
        self.places([range]).map(|[place]| (place, write))
    }

    /// Writes what is trained of the weight in `range`, `[outputs, inputs]`, of a product of `input` with it: all of it, or its
    /// adapters.
    pub(super) fn of_weight(
        &mut self,
        range: &Range<usize>,
        gradient: Matrix<'_>,
        input: Matrix<'_>,
        low_rank: LowRank,
    ) {
        let (products, write) = (self.products, self.write);
        if let Some((place, write)) = self.place(range) {
            let place = MatrixMut::dense(place, gradient.width(), input.width());
            linear::to_weight(products, place, write, gradient, input);
        }
        if let Some(adapters) = self.adapters {
            adapters.backward((products, write), range, self.values, gradient, input, low_rank);
        }
    }

    /// Writes the gradient of the bias in `range`, which was added to the columns from `first` on of rows of this width.
    pub(super) fn of_bias(&mut self, range: &Range<usize>, gradient: &[f32], row_width: usize, first: usize) {
        if let Some(place) = self.place(range) {
            bias::backward(place, gradient, row_width, first);
        }
    }
}
