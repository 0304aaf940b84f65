//! The definition of the code: from docs/wire.md alone, slow, and without a line of the crate.
//!
//! ```text
//! combine   what a coded packet must be
//! Model     what a receiver can know: plain Gauss-Jordan elimination over coefficients and payloads
//! ```

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The product in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1.
pub fn mul(a: u8, b: u8) -> u8 {
    PRODUCTS[usize::from(a)][usize::from(b)]
}

static PRODUCTS: LazyLock<[[u8; 256]; 256]> = LazyLock::new(|| {
    std::array::from_fn(|a| std::array::from_fn(|b| mul_bitwise(a as u8, b as u8)))
});

/// The product by its definition: shift, add, reduce.
fn mul_bitwise(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        let carry = a & 0x80 != 0;
        a <<= 1;
        if carry {
            a ^= 0x1b;
        }
        b >>= 1;
    }
    product
}

/// The inverse of `a`: a^254, because a^255 is 1.
pub fn invert(a: u8) -> u8 {
    (0..254).fold(1, |power, _| mul(power, a))
}

/// The `count` coefficients of `seed`: 1, then the non-zero bytes of SplitMix64.
pub fn coefficients(seed: u32, count: usize) -> Vec<u8> {
    let mut state = u64::from(seed);
    let words = std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    });
    let bytes = words.flat_map(u64::to_le_bytes).filter(|byte| *byte != 0);
    std::iter::once(1).chain(bytes).take(count).collect()
}

/// The coded packet over `symbols`: the sum of each, padded to the longest, times its coefficient.
pub fn combine<S: AsRef<[u8]>>(symbols: &[S], seed: u32) -> Vec<u8> {
    let mut sum = Vec::new();
    for (symbol, coefficient) in symbols.iter().zip(coefficients(seed, symbols.len())) {
        add(&mut sum, coefficient, symbol.as_ref());
    }
    sum
}

/// A whole inner packet, or a fragment of one, as a symbol: `position` in 0..4, then the length.
pub fn symbol(position: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("a symbol is short");
    assert!(position < 4 && length < 1 << 14, "the prefix has 2 bits of position, 14 of length");
    let mut symbol = (u16::from(position) << 14 | length).to_be_bytes().to_vec();
    symbol.extend(body);
    symbol
}

/// What follows from the received packets out of `columns`.
#[derive(Debug)]
pub struct Model {
    columns: usize,
    /// In reduced form: the pivot column of a row is 1 there, and 0 in all others.
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    pivot: usize,
    coefficients: Vec<u8>,
    payload: Vec<u8>,
}

impl Model {
    pub fn new(columns: usize) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds the packet `index` itself; returns whether that is new information.
    pub fn take_source(&mut self, index: usize, symbol: &[u8]) -> bool {
        self.take(index, &[1], symbol)
    }

    /// Adds a coded packet over `count` packets from `first` on; returns whether it was new.
    pub fn take_coded(&mut self, first: usize, count: usize, seed: u32, payload: &[u8]) -> bool {
        self.take(first, &coefficients(seed, count), payload)
    }

    pub fn rank(&self) -> usize {
        self.rows.len()
    }

    /// The determined packets, with their symbols cut to their lengths.
    pub fn determined(&self) -> BTreeMap<usize, &[u8]> {
        let alone = |row: &&Row| row.coefficients.iter().filter(|c| **c != 0).count() == 1;
        let cut = |row: &'_ Row| {
            let length = usize::from(u16::from_be_bytes([row.payload[0], row.payload[1]]) & 0x3fff);
            2 + length
        };
        self.rows.iter().filter(alone).map(|row| (row.pivot, &row.payload[..cut(row)])).collect()
    }

    fn take(&mut self, first: usize, terms: &[u8], payload: &[u8]) -> bool {
        let mut coefficients = vec![0; self.columns];
        coefficients[first..first + terms.len()].copy_from_slice(terms);
        let mut new = Row { pivot: 0, coefficients, payload: payload.to_vec() };
        for row in &self.rows {
            new.add(new.coefficients[row.pivot], row);
        }
        let Some(pivot) = new.coefficients.iter().position(|c| *c != 0) else { return false };
        new.pivot = pivot;
        let scale = invert(new.coefficients[pivot]);
        for byte in new.coefficients.iter_mut().chain(&mut new.payload) {
            *byte = mul(scale, *byte);
        }
        for row in &mut self.rows {
            row.add(row.coefficients[pivot], &new);
        }
        self.rows.push(new);
        true
    }
}

impl Row {
    fn add(&mut self, factor: u8, other: &Self) {
        if factor != 0 {
            add(&mut self.coefficients, factor, &other.coefficients);
            add(&mut self.payload, factor, &other.payload);
        }
    }
}

/// Adds `factor * x` to `sum`, which grows to the length of `x`.
fn add(sum: &mut Vec<u8>, factor: u8, x: &[u8]) {
    sum.resize(sum.len().max(x.len()), 0);
    let products = &PRODUCTS[usize::from(factor)];
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum ^= products[usize::from(*x)];
    }
}
