//! The field GF(2^8): bytes as polynomials over bits, modulo x^8 + x^4 + x^3 + x + 1 (0x11b).
//!
//! Addition is XOR. The polynomial is that of AES (FIPS 197 section 4.2), which the x86 instruction
//! GF2P8MULB has built in: it multiplies a vector by a coefficient without tables, which keeps
//! coding cheap on the server. Others would need an 8x8 bit matrix per coefficient there; for
//! shuffle tables (AVX2, NEON) all cost the same. The polynomial is part of the protocol.
//!
//! The byte 3 (x + 1) generates the multiplicative group; 2 does not.

/// The reducing polynomial, as the bits of x^8 ... x^0.
pub const POLYNOMIAL: u16 = 0x11b;

/// The product of `a` and `b`.
#[inline]
#[must_use]
pub const fn mul(a: u8, b: u8) -> u8 {
    let nibbles = &PRODUCTS[a as usize];
    nibbles[(b & 15) as usize] ^ nibbles[16 + (b >> 4) as usize]
}

/// The inverse of `a`; 0, which has none, is mapped to 0.
#[inline]
#[must_use]
pub const fn invert(a: u8) -> u8 {
    INVERSES[a as usize]
}

/// The products of one coefficient, by nibble of the other factor. `products(c)[n]` is c * n and
/// `products(c)[16 + n]` is c * 16n, so that c * x is the sum of two look-ups in tables of 16
/// bytes, the size that a byte shuffle works on.
#[inline]
pub(crate) const fn products(coefficient: u8) -> &'static [u8; 32] {
    &PRODUCTS[coefficient as usize]
}

static PRODUCTS: [[u8; 32]; 256] = {
    let mut table = [[0; 32]; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[coefficient][nibble] = mul_bitwise(coefficient as u8, nibble as u8);
            table[coefficient][16 + nibble] = mul_bitwise(coefficient as u8, (nibble as u8) << 4);
            nibble += 1;
        }
        coefficient += 1;
    }
    table
};

static INVERSES: [u8; 256] = {
    let mut powers = [0u8; 255];
    let mut logs = [0u8; 256];
    let mut power = 1;
    let mut exponent = 0;
    while exponent < 255 {
        powers[exponent] = power;
        logs[power as usize] = exponent as u8;
        power = mul_bitwise(power, GENERATOR);
        exponent += 1;
    }
    let mut inverses = [0; 256];
    let mut value = 1;
    while value < 256 {
        inverses[value] = powers[(255 - logs[value] as usize) % 255];
        value += 1;
    }
    inverses
};

/// A byte whose powers are all the others.
const GENERATOR: u8 = 3;

/// The product by its definition: shift, add, reduce.
const fn mul_bitwise(a: u8, b: u8) -> u8 {
    let mut sum = 0u16;
    let mut shifted = a as u16;
    let mut bit = 0;
    while bit < 8 {
        if (b >> bit) & 1 == 1 {
            sum ^= shifted;
        }
        shifted <<= 1;
        if shifted & 0x100 != 0 {
            shifted ^= POLYNOMIAL;
        }
        bit += 1;
    }
    sum as u8
}
