//! What a transformer computes with, and where its gradient goes: one flat vector of which all is trained, or a frozen base
//! with low-rank adapters beside some of its matrices.
//!
//! An adapted layer is `y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ`. Its backward needs `u = s·g·B` for the gradient `g` of `y`: then
//! `dx = g·W + u·A`, `dA = uᵀ·x` and `dB = s·gᵀ·(x·Aᵀ)`. The frozen `W` has no gradient, so a token costs four
//! operations a weight instead of six, and nothing as large as the base is held beside it.

use std::ops::Range;

use crate::model::adapter_places::AdapterPlaces;
use crate::ops::base_weights::BaseWeights;
use crate::ops::linear::{StoredMatrix, Weight};
use crate::ops::product::{Matrix, MatrixMut, Products, Write, multiply_in_parallel};
use crate::ops::{bias, embedding, linear};

/// All weights of a transformer, or of a stage of it. Ranges are places in its layout.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a> {
    values: Values<'a>,
    adapters: Option<Adapters<'a>>,
}

#[derive(Clone, Copy)]
enum Values<'a> {
    Trained(&'a [f32]),
    Frozen(&'a BaseWeights),
}

/// What is trained beside a frozen base.
#[derive(Clone, Copy)]
pub(crate) struct Adapters<'a> {
    /// Sorted by their targets' places in the base.
    pub(crate) places: &'a [AdapterPlaces],
    /// The `s` above.
    pub(crate) scale: f32,
    /// Flat in the order of the adapters' layout.
    pub(crate) values: &'a [f32],
}

/// The `u` of each adapter of a product, `[rows, rank]`; none where there is no adapter.
pub(super) struct LowRank(Vec<Vec<f32>>);

impl<'a> Weights<'a> {
    /// Flat parameters of which all are trained.
    pub(crate) fn of_trained(values: &'a [f32]) -> Weights<'a> {
        Weights { values: Values::Trained(values), adapters: None }
    }

    /// Of a frozen base and adapters.
    pub(crate) fn adapted(base: &'a BaseWeights, adapters: Adapters<'a>) -> Weights<'a> {
        Weights { values: Values::Frozen(base), adapters: Some(adapters) }
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
        for (adapters, places) in self.adapters_in(range) {
            let (down, up) = adapters.matrices(places);
            let low = adapters.projected(products, places, input);
            let place = output.again().columns(places.first_output(range), places.outputs());
            let low = Matrix::dense(&low, input.height(), places.rank());
            debug_assert_eq!(down.width(), input.width());
            multiply_in_parallel(products.exactly(), place, Write::Add, adapters.scale, low, up.transposed());
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
        let low_rank = self.adapters_in(range).map(|(adapters, places)| {
            let (down, up) = adapters.matrices(places);
            let gradient = gradient.columns(places.first_output(range), places.outputs());
            let mut low = vec![0.0; gradient.height() * places.rank()];
            let mut place = MatrixMut::dense(&mut low, gradient.height(), places.rank());
            multiply_in_parallel(products.exactly(), place.again(), Write::Replace, adapters.scale, gradient, up);
            let low_matrix = Matrix::dense(&low, gradient.height(), places.rank());
            multiply_in_parallel(products.exactly(), to_input.again(), Write::Add, 1.0, low_matrix, down);
            low
        });
        LowRank(low_rank.collect())
    }

    /// Where the gradient of what is trained goes.
    pub(super) fn gradient<'g>(self, values: &'g mut [f32], write: Write, products: Products) -> Gradient<'g>
    where
        'a: 'g,
    {
        Gradient { values, write, products, adapters: self.adapters }
    }

    /// Of the matrices that lie in `range`.
    fn adapters_in(self, range: &Range<usize>) -> impl Iterator<Item = (Adapters<'a>, &'a AdapterPlaces)> + use<'a> {
        adapters_in(self.adapters, range)
    }
}

fn adapters_in<'a>(
    adapters: Option<Adapters<'a>>,
    range: &Range<usize>,
) -> impl Iterator<Item = (Adapters<'a>, &'a AdapterPlaces)> + use<'a> {
    let within = adapters.map(|adapters| (adapters, AdapterPlaces::within(adapters.places, range)));
    within.into_iter().flat_map(|(adapters, within)| within.iter().map(move |places| (adapters, places)))
}

impl<'a> Adapters<'a> {
    /// (A `[rank, inputs]`, B `[outputs, rank]`).
    fn matrices(&self, places: &AdapterPlaces) -> (Matrix<'a>, Matrix<'a>) {
        let down = Matrix::dense(&self.values[places.down.range()], places.rank(), places.inputs());
        (down, Matrix::dense(&self.values[places.up.range()], places.outputs(), places.rank()))
    }

    /// `x·Aᵀ`, `[rows, rank]`.
    fn projected(&self, products: Products, places: &AdapterPlaces, input: Matrix<'_>) -> Vec<f32> {
        let mut low = vec![0.0; input.height() * places.rank()];
        let place = MatrixMut::dense(&mut low, input.height(), places.rank());
        let (down, _) = self.matrices(places);
        multiply_in_parallel(products.exactly(), place, Write::Replace, 1.0, input, down.transposed());
        low
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
        LowRank(low_rank): LowRank,
    ) {
        let (products, write) = (self.products, self.write);
        if let Some((place, write)) = self.place(range) {
            let place = MatrixMut::dense(place, gradient.width(), input.width());
            linear::to_weight(products, place, write, gradient, input);
        }
        for ((adapters, places), low) in adapters_in(self.adapters, range).zip(low_rank) {
            let (rows, rank) = (input.height(), places.rank());
            let gradient = gradient.columns(places.first_output(range), places.outputs());
            let projected = adapters.projected(products, places, input);
            let projected = Matrix::dense(&projected, rows, rank);
            let to_up = MatrixMut::dense(&mut self.values[places.up.range()], places.outputs(), rank);
            multiply_in_parallel(products.exactly(), to_up, write, adapters.scale, gradient.transposed(), projected);
            let to_down = MatrixMut::dense(&mut self.values[places.down.range()], rank, places.inputs());
            let low = Matrix::dense(&low, rows, rank);
            multiply_in_parallel(products.exactly(), to_down, write, 1.0, low.transposed(), input);
        }
    }

    /// Writes the gradient of the bias in `range`, which was added to the columns from `first` on of rows of this width.
    pub(super) fn of_bias(&mut self, range: &Range<usize>, gradient: &[f32], row_width: usize, first: usize) {
        if let Some(place) = self.place(range) {
            bias::backward(place, gradient, row_width, first);
        }
    }
}
