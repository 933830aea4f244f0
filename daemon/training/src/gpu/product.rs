//! Matrix products as models write them, and as BLAS takes them.

use super::{Kind, Span};

/// A row-major matrix, or several of one shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    span: Span,
    /// Values from one row to the next.
    row_stride: usize,
    /// Values from one matrix to the next.
    batch_stride: usize,
    is_transposed: bool,
}

impl Matrix {
    /// Whose rows are `row_stride` values apart.
    pub(crate) fn new(span: Span, row_stride: usize) -> Matrix {
        Matrix { span, row_stride, batch_stride: 0, is_transposed: false }
    }

    /// One after the other, every so many values.
    pub(crate) fn every(self, batch_stride: usize) -> Matrix {
        Matrix { batch_stride, ..self }
    }

    /// Without those before it.
    pub(crate) fn columns_from(self, first: usize) -> Matrix {
        Matrix { span: self.span.part(first..self.span.values), ..self }
    }

    /// Values from one row to the next: the columns of a matrix that is no part of another.
    pub(crate) fn columns(&self) -> usize {
        self.row_stride
    }

    /// The transpose of what is stored.
    pub(crate) fn transposed(self) -> Matrix {
        Matrix { is_transposed: !self.is_transposed, ..self }
    }
}

/// `C ← s·A·B`, or `C ← C + s·A·B`; `A` and `B` hold the same kind of values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    a: Matrix,
    b: Matrix,
    c: Matrix,
    /// Rows of `C`, columns of `C`, values summed for each.
    shape: [usize; 3],
    scale: f32,
    adds: bool,
    batch: usize,
}

/// The arguments of a strided batched GEMM of BLAS, whose matrices are column-major.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gemm {
    pub(crate) a_is_transposed: bool,
    pub(crate) b_is_transposed: bool,
    pub(crate) m: i32,
    pub(crate) n: i32,
    pub(crate) k: i32,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    pub(crate) c: Operand,
    pub(crate) alpha: f32,
    /// 0 or 1.
    pub(crate) beta: f32,
    pub(crate) batch: i32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) address: u64,
    pub(crate) kind: Kind,
    pub(crate) leading_dimension: i32,
    pub(crate) stride: i64,
}

impl Product {
    /// Of `[rows, inner]` and `[inner, columns]`, given as `[rows, columns, inner]`.
    pub(crate) fn new(a: Matrix, b: Matrix, c: Matrix, shape: [usize; 3]) -> Product {
        Product { a, b, c, shape, scale: 1.0, adds: false, batch: 1 }
    }

    /// Times so much.
    pub(crate) fn scaled(self, scale: f32) -> Product {
        Product { scale, ..self }
    }

    /// Adds to what is in `C`.
    pub(crate) fn adds(self) -> Product {
        Product { adds: true, ..self }
    }

    /// So many at once.
    pub(crate) fn batch(self, batch: usize) -> Product {
        Product { batch, ..self }
    }

    /// The same for BLAS, to which a row-major matrix is a transposed one: `Cᵀ = Bᵀ·Aᵀ`.
    ///
    /// # Panics
    /// When a matrix is larger than what its span holds.
    pub(crate) fn gemm(&self) -> Gemm {
        let [rows, columns, inner] = self.shape;
        let operand = |matrix: &Matrix, rows: usize, columns: usize| {
            let (rows, columns) = if matrix.is_transposed { (columns, rows) } else { (rows, columns) };
            let last = (self.batch - 1) * matrix.batch_stride + (rows - 1) * matrix.row_stride + columns;
            assert!(last <= matrix.span.values && columns <= matrix.row_stride, "{matrix:?} of {rows} × {columns}");
            Operand {
                address: matrix.span.address,
                kind: matrix.span.kind,
                leading_dimension: dimension(matrix.row_stride),
                stride: matrix.batch_stride as i64,
            }
        };
        Gemm {
            a_is_transposed: self.b.is_transposed,
            b_is_transposed: self.a.is_transposed,
            m: dimension(columns),
            n: dimension(rows),
            k: dimension(inner),
            a: operand(&self.b, inner, columns),
            b: operand(&self.a, rows, inner),
            c: operand(&self.c, rows, columns),
            alpha: self.scale,
            beta: if self.adds { 1.0 } else { 0.0 },
            batch: dimension(self.batch),
        }
    }
}

fn dimension(value: usize) -> i32 {
    i32::try_from(value).expect("no dimension has 2³¹ values")
}
