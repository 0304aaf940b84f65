//! Every kernel against a field that we did not write.

use galois_2p8::{Field, GeneralField, IrreducablePolynomial};
use proptest::prelude::*;

use super::*;
use crate::gf256;
use crate::test_support::Noise;

/// The same field as ours, by another implementation.
fn independent_field() -> impl Field {
    GeneralField::new(IrreducablePolynomial::Poly84310)
}

fn noise(length: usize, seed: u8) -> Vec<u8> {
    Noise::new(seed.into()).bytes(length)
}

#[test]
fn all_products_agree_with_an_independent_field() {
    let field = independent_field();
    let all: Vec<u8> = (0..=255).collect();
    for a in 0..=255 {
        for b in 0..=255 {
            assert_eq!(gf256::mul(a, b), field.mult(a, b), "{a} * {b}");
        }
        if a != 0 {
            assert_eq!(gf256::invert(a), field.div(1, a), "1 / {a}");
        }
        let expected: Vec<u8> = all.iter().map(|b| field.mult(a, *b)).collect();
        for kernel in Kernel::available() {
            let mut products = [0; 256];
            kernel.mul_add(&mut products, a, &all);
            assert_eq!(products[..], expected, "{a} in {}", kernel.name());
            let mut products = [0; 256];
            kernel.dot_add(&mut products, &[(a, &all)]);
            assert_eq!(products[..], expected, "{a} fused in {}", kernel.name());
        }
    }
}

#[test]
fn kernels_agree_at_every_length_and_alignment() {
    let x = noise(340, 1);
    let y = noise(340, 2);
    for kernel in Kernel::available() {
        for length in 0..=300 {
            for offset in [0, 1, 7, 31, 33] {
                let coefficient = (length as u8).wrapping_mul(37) ^ offset as u8;
                let mut expected = y.clone();
                for (y, x) in expected[40 - offset..].iter_mut().zip(&x[offset..offset + length]) {
                    *y ^= gf256::mul(coefficient, *x);
                }
                let mut actual = y.clone();
                let x = &x[offset..offset + length];
                kernel.mul_add(&mut actual[40 - offset..], coefficient, x);
                assert_eq!(actual, expected, "{length} at {offset} in {}", kernel.name());
                actual.copy_from_slice(&y);
                kernel.dot_add(&mut actual[40 - offset..], &[(coefficient, x)]);
                assert_eq!(actual, expected, "{length} at {offset} fused in {}", kernel.name());
            }
        }
    }
}

#[test]
fn a_dot_product_of_nothing_changes_nothing() {
    for kernel in Kernel::available() {
        let mut y = noise(200, 3);
        kernel.dot_add(&mut y, &[]);
        kernel.dot_add(&mut y, &[(5, &[])]);
        kernel.dot_add(&mut y, &[(0, &noise(200, 4))]);
        assert_eq!(y, noise(200, 3));
    }
}

#[test]
#[should_panic(expected = "3 bytes do not fit 2")]
fn a_vector_that_does_not_fit_is_refused() {
    Kernel::fastest().dot_add(&mut [0; 2], &[(1, &[1]), (1, &[1, 2, 3])]);
}

proptest! {
    #[test]
    fn a_dot_product_is_the_sum_of_its_terms(
        terms in prop::collection::vec((any::<u8>(), 0usize..700, any::<u8>()), 0..20),
        spare in 0usize..150,
    ) {
        let vectors: Vec<(u8, Vec<u8>)> =
            terms.iter().map(|(c, length, seed)| (*c, noise(*length, *seed))).collect();
        let terms: Vec<Term<'_>> = vectors.iter().map(|(c, x)| (*c, &x[..])).collect();
        let longest = vectors.iter().map(|(_, x)| x.len()).max().unwrap_or(0);
        let mut expected = noise(longest + spare, 9);
        for (coefficient, x) in &terms {
            for (y, x) in expected.iter_mut().zip(*x) {
                *y ^= gf256::mul(*coefficient, *x);
            }
        }
        for kernel in Kernel::available() {
            let mut actual = noise(longest + spare, 9);
            kernel.dot_add(&mut actual, &terms);
            prop_assert_eq!(&actual, &expected, "{}", kernel.name());
        }
    }
}
