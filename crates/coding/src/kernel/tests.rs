//! Every kernel against byte-by-byte arithmetic, and that against a field that we did not write.

use std::ops::Range;

use galois_2p8::{Field, GeneralField, IrreducablePolynomial};
use proptest::prelude::*;

use super::*;
use crate::gf256;
use crate::test_support::Noise;

/// Surrounds the vectors of a test, and must remain unchanged.
const CANARY: u8 = 0xa5;

/// Vectors in one buffer, each at a chosen distance from a cache line, with canaries between.
struct Placed {
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

impl Placed {
    fn new(vectors: &[Vec<u8>], alignment: usize) -> Self {
        let room = vectors.iter().map(|vector| vector.len() + 3 * 64).sum::<usize>() + 64;
        let mut bytes = vec![CANARY; room];
        let mut ranges = Vec::new();
        let mut end = 0;
        for (index, vector) in vectors.iter().enumerate() {
            let line = end + 64 + bytes[end..].as_ptr().align_offset(64) % 64;
            let start = line + (alignment + 13 * index) % 64;
            end = start + vector.len();
            bytes[start..end].copy_from_slice(vector);
            ranges.push(start..end);
        }
        Self { bytes, ranges }
    }

    fn slices(&self) -> Vec<&[u8]> {
        self.ranges.iter().map(|range| &self.bytes[range.clone()]).collect()
    }

    fn slices_mut(&mut self) -> Vec<&mut [u8]> {
        let mut rest = &mut self.bytes[..];
        let mut passed = 0;
        let mut slices = Vec::new();
        for range in &self.ranges {
            let (before, after) = rest.split_at_mut(range.end - passed);
            slices.push(&mut before[range.start - passed..]);
            rest = after;
            passed = range.end;
        }
        slices
    }

    fn check(&self, expected: &[Vec<u8>], what: &str) {
        for (index, (actual, expected)) in self.slices().iter().zip(expected).enumerate() {
            assert!(actual == expected, "output {index} of {what}");
        }
        let mut outside = self.bytes.clone();
        self.ranges.iter().for_each(|range| outside[range.clone()].fill(CANARY));
        assert!(outside.iter().all(|byte| *byte == CANARY), "beside the outputs of {what}");
    }
}

/// One call of `combine`, and those of `dot` and `mul_add` that give the same bytes.
#[derive(Clone, Debug)]
struct Case {
    source_lengths: Vec<usize>,
    rows: Vec<Vec<u8>>,
    /// By how much the outputs are longer than the longest source: this, twice this, ...
    spare: usize,
    alignment_sources: usize,
    alignment_outputs: usize,
}

impl Case {
    fn sources(&self) -> Vec<Vec<u8>> {
        let lengths = self.source_lengths.iter().enumerate();
        lengths.map(|(index, length)| noise(*length, index as u8)).collect()
    }

    fn noise_outputs(&self) -> Vec<Vec<u8>> {
        let longest = self.source_lengths.iter().copied().max().unwrap_or(0);
        (1..=self.rows.len()).map(|index| noise(longest + index * self.spare, 77)).collect()
    }

    /// The outputs, added to the initial ones or set.
    fn expected(&self, sources: &[Vec<u8>], is_added: bool) -> Vec<Vec<u8>> {
        let mut outputs = self.noise_outputs();
        for (y, row) in outputs.iter_mut().zip(&self.rows) {
            if !is_added {
                y.fill(0);
            }
            for (coefficient, x) in row.iter().zip(sources) {
                for (y, x) in y.iter_mut().zip(x) {
                    *y ^= gf256::mul(*coefficient, *x);
                }
            }
        }
        outputs
    }

    fn check(&self) {
        let vectors = self.sources();
        let placed = Placed::new(&vectors, self.alignment_sources);
        let sources = placed.slices();
        let expected = self.expected(&vectors, false);
        let expected_added = self.expected(&vectors, true);
        for kernel in Kernel::available() {
            let name = kernel.name();

            let mut outputs = Placed::new(&self.noise_outputs(), self.alignment_outputs);
            kernel.combine(&mut outputs.slices_mut(), &self.rows.concat(), &sources);
            outputs.check(&expected, &format!("combine of {name}"));

            let mut outputs = Placed::new(&self.noise_outputs(), self.alignment_outputs);
            for (y, row) in outputs.slices_mut().into_iter().zip(&self.rows) {
                let terms: Vec<Term<'_>> =
                    row.iter().copied().zip(sources.iter().copied()).collect();
                kernel.dot(y, &terms);
            }
            outputs.check(&expected, &format!("dot of {name}"));

            let mut outputs = Placed::new(&self.noise_outputs(), self.alignment_outputs);
            for (y, row) in outputs.slices_mut().into_iter().zip(&self.rows) {
                for (coefficient, x) in row.iter().zip(&sources) {
                    kernel.mul_add(y, *coefficient, x);
                }
            }
            outputs.check(&expected_added, &format!("mul_add of {name}"));
        }
    }
}

fn noise(length: usize, seed: u8) -> Vec<u8> {
    Noise::new(seed.into()).bytes(length)
}

/// `outputs` rows for `sources` sources; 0 and 1 are among the coefficients.
fn rows(outputs: usize, sources: usize) -> Vec<Vec<u8>> {
    let coefficient = |output, source| match (output + source) % 5 {
        0 => (source % 2) as u8,
        _ => (output * 83 + source * 29 + 7) as u8,
    };
    let row = |output| (0..sources).map(|source| coefficient(output, source)).collect();
    (0..outputs).map(row).collect()
}

#[test]
fn all_products_agree_with_an_independent_field() {
    let field = GeneralField::new(IrreducablePolynomial::Poly84310);
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(gf256::invert(0), 0);
    for a in 0..=255 {
        for b in 0..=255 {
            assert_eq!(gf256::mul(a, b), field.mult(a, b), "{a} * {b}");
        }
        if a != 0 {
            assert_eq!(gf256::invert(a), field.div(1, a), "1 / {a}");
        }
        let expected: Vec<u8> = all.iter().map(|b| field.mult(a, *b)).collect();
        for kernel in Kernel::available() {
            let mut products = [[0; 256]; 3];
            let [added, dotted, combined] = &mut products;
            kernel.mul_add(added, a, &all);
            kernel.dot(dotted, &[(a, &all)]);
            kernel.combine(&mut [combined], &[a], &[&all]);
            assert!(products.iter().all(|row| row[..] == expected), "{a} in {}", kernel.name());
        }
    }
}

/// Checks sources of these lengths; the alignments are those of sources and outputs.
fn check(source_lengths: Vec<usize>, outputs: usize, spare: usize, alignments: [usize; 2]) {
    let rows = rows(outputs, source_lengths.len());
    let [alignment_sources, alignment_outputs] = alignments;
    Case { source_lengths, rows, spare, alignment_sources, alignment_outputs }.check();
}

#[test]
fn kernels_agree_at_every_short_length_number_and_alignment() {
    for length in 0..=300 {
        check(vec![length; 3], 4, length % 3, [length % 64, length * 5 % 64]);
    }
    for alignment in 0..64 {
        for length in [1, 16, 48, 64, 100, 256, 1_282] {
            check(vec![length; 2], 2, 0, [alignment, 0]);
            check(vec![length; 2], 2, 0, [0, alignment]);
        }
    }
    for outputs in 0..=20 {
        for sources in [0, 1, 2, 3, 10, 11, 64] {
            check(vec![300; sources], outputs, 1, [3, 5]);
        }
    }
}

#[test]
fn a_source_may_end_anywhere() {
    for length in 0..=600 {
        check(vec![600, length, 600, length / 2], 3, 0, [1, 2]);
    }
}

#[test]
fn kernels_eliminate_as_bytes_would() {
    let product = |factor: u8, row: &[u8]| row.iter().map(|x| gf256::mul(factor, *x)).collect();
    let add = |y: &mut [u8], x: Vec<u8>| y.iter_mut().zip(x).for_each(|(y, x)| *y ^= x);
    for length in [1, 7, 16, 31, 32, 33, 64, 100, 128, 256] {
        for count in [0, 1, 2, 9] {
            let rows = noise(length * count, 1);
            let factors = noise(count, 2);
            let mut sum = noise(length, 3);
            let mut pivot = noise(length, 4);
            let column = length / 2;
            pivot[column] = 1;
            let (before, mut cleared) = (sum.clone(), rows.clone());
            for (row, factor) in rows.chunks_exact(length).zip(&factors) {
                add(&mut sum, product(*factor, row));
            }
            for row in cleared.chunks_exact_mut(length) {
                add(row, product(row[column], &pivot));
            }
            for kernel in Kernel::available() {
                let (mut y, mut matrix) = (before.clone(), rows.clone());
                kernel.add_rows(&mut y, &factors, &rows);
                assert!(y == sum, "{}: {count} rows of {length} bytes", kernel.name());
                kernel.clear_column(&mut matrix, column, &pivot);
                assert!(matrix == cleared, "{}: {count} rows of {length} bytes", kernel.name());
                assert!(matrix.chunks_exact(length).all(|row| row[column] == 0));
            }
        }
    }
}

#[test]
#[should_panic(expected = "3 bytes do not fit 2")]
fn mul_add_refuses_what_does_not_fit() {
    Kernel::fastest().mul_add(&mut [0; 2], 1, &[1, 2, 3]);
}

#[test]
#[should_panic(expected = "3 bytes do not fit 2")]
fn dot_refuses_what_does_not_fit() {
    Kernel::fastest().dot(&mut [0; 2], &[(1, &[1]), (1, &[1, 2, 3])]);
}

#[test]
#[should_panic(expected = "3 bytes do not fit 2")]
fn combine_refuses_what_does_not_fit() {
    Kernel::fastest().combine(&mut [&mut [0; 4], &mut [0; 2]], &[1, 1], &[&[1, 2, 3]]);
}

#[test]
#[should_panic(expected = "a coefficient for each output and source")]
fn combine_refuses_a_wrong_number_of_coefficients() {
    Kernel::fastest().combine(&mut [&mut [0; 4]], &[1, 1, 1], &[&[1], &[2]]);
}

fn case() -> impl Strategy<Value = Case> {
    let coefficient = || prop_oneof![1 => 0u8..=1, 4 => any::<u8>()];
    let length = |longest: usize| prop_oneof![2 => Just(longest), 1 => 0..=longest];
    (0usize..=9_000, 0usize..=64, 0usize..=20)
        .prop_flat_map(move |(longest, sources, outputs)| {
            let row = prop::collection::vec(coefficient(), sources);
            (
                prop::collection::vec(length(longest), sources),
                prop::collection::vec(row, outputs),
                0usize..80,
                0usize..64,
                0usize..64,
            )
        })
        .prop_map(|(source_lengths, rows, spare, alignment_sources, alignment_outputs)| Case {
            source_lengths,
            rows,
            spare,
            alignment_sources,
            alignment_outputs,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn kernels_agree_on_anything(case in case()) {
        case.check();
    }
}
