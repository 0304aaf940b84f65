//! The frame ID: a bar code in the picture that identifies the frame.
//!
//! Two rows of twelve black or white blocks at the top left of a 1920x1080 picture hold 16 bits of
//! frame number and 8 bits of CRC, row by row, most significant bit first. A block is 48 pixels
//! wide, which survives heavy compression and scaling to 640x360. ffmpeg draws the blocks
//! (`drawbox` with an expression per bit): each check bit is a parity of bits of the number.
//!
//! ```text
//!   +----+----+- ... -+----+
//!   | 15 | 14 |       |  4 |     number, 16 bits, then
//!   +----+----+- ... -+----+     CRC-8 of the number, 8 bits
//!   |  3 |  2 |       | c0 |
//!   +----+----+- ... -+----+
//! ```
//!
//! Source: CellFusion appendix C.

use std::fmt::Write as _;

/// Width of pictures with the code, pixels.
pub const PICTURE_WIDTH: usize = 1920;
/// Height of pictures with the code, pixels.
pub const PICTURE_HEIGHT: usize = 1080;

const ID_BITS: u32 = 16;
const CHECK_BITS: u32 = 8;
const BLOCK: usize = 48;
const COLUMNS: usize = 12;
const LEFT: usize = 48;
const TOP: usize = 48;
/// x^8 + x^2 + x + 1. The start value makes an all-black code invalid.
const CRC_POLYNOMIAL: u8 = 0x07;
const CRC_START: u8 = 0xff;
/// Blocks closer to mid-grey are unreadable.
const CONTRAST_MIN: u32 = 24;

/// ffmpeg filters that stamp frame `n` with the low 16 bits of `n`.
pub fn stamp_filter() -> String {
    let columns = COLUMNS * BLOCK;
    let rows = (ID_BITS + CHECK_BITS) as usize / COLUMNS * BLOCK;
    let mut filter =
        format!("drawbox=x={LEFT}:y={TOP}:w={columns}:h={rows}:color=black:thickness=fill");
    for index in 0..ID_BITS + CHECK_BITS {
        let (x, y) = block_origin(index as usize);
        write!(
            filter,
            ",drawbox=x={x}:y={y}:w={BLOCK}:h={BLOCK}:color=white:thickness=fill:enable='{}'",
            bit_expression(index)
        )
        .expect("writing to a string does not fail");
    }
    filter
}

/// Reads the frame ID from a luma plane of `width * height` bytes, row by row; 16:9 and at least
/// 320 pixels wide. `None` if a block is neither black nor white, or the check fails.
pub fn read(luma: &[u8], width: usize, height: usize) -> Option<u16> {
    debug_assert_eq!(luma.len(), width * height, "one byte per pixel");
    let mut code = 0_u32;
    for index in 0..(ID_BITS + CHECK_BITS) as usize {
        code = code << 1 | u32::from(read_block(luma, width, height, index)?);
    }
    let id = u16::try_from(code >> CHECK_BITS).expect("16 bits remain");
    (crc8(id) == (code & 0xff) as u8).then_some(id)
}

/// Averages the middle of a block, since compression blurs its edges.
fn read_block(luma: &[u8], width: usize, height: usize, index: usize) -> Option<bool> {
    let (x, y) = block_origin(index);
    let columns = scaled(x, width, PICTURE_WIDTH)..scaled(x + BLOCK / 2, width, PICTURE_WIDTH);
    let rows = scaled(y, height, PICTURE_HEIGHT)..scaled(y + BLOCK / 2, height, PICTURE_HEIGHT);
    let (mut sum, mut count) = (0_u32, 0_u32);
    for row in rows {
        let pixels = luma.get(row * width..(row + 1) * width)?.get(columns.clone())?;
        sum += pixels.iter().map(|&pixel| u32::from(pixel)).sum::<u32>();
        count += u32::try_from(pixels.len()).ok()?;
    }
    let mean = sum.checked_div(count)?;
    (mean.abs_diff(128) >= CONTRAST_MIN).then_some(mean > 128)
}

/// Start of the middle half of a block after scaling from `full` to `size` pixels.
fn scaled(position: usize, size: usize, full: usize) -> usize {
    (position + BLOCK / 4) * size / full
}

fn block_origin(index: usize) -> (usize, usize) {
    (LEFT + index % COLUMNS * BLOCK, TOP + index / COLUMNS * BLOCK)
}

/// An expression of ffmpeg with the value 0 or 1.
fn bit_expression(index: u32) -> String {
    if index < ID_BITS {
        return format!("mod(floor(n/{}),2)", 1_u32 << (ID_BITS - 1 - index));
    }
    // A CRC is affine: each bit is the parity of some bits of the number, plus a constant.
    let check_bit = 1_u8 << (ID_BITS + CHECK_BITS - 1 - index);
    let constant = u32::from(crc8(0) & check_bit != 0);
    let mut sum = constant.to_string();
    for bit in 0..ID_BITS {
        if (crc8(1 << bit) ^ crc8(0)) & check_bit != 0 {
            write!(sum, "+mod(floor(n/{}),2)", 1_u32 << bit)
                .expect("writing to a string does not fail");
        }
    }
    format!("mod({sum},2)")
}

fn crc8(id: u16) -> u8 {
    id.to_be_bytes().iter().fold(CRC_START, |mut crc, byte| {
        crc ^= byte;
        for _ in 0..8 {
            crc = if crc & 0x80 == 0 { crc << 1 } else { crc << 1 ^ CRC_POLYNOMIAL };
        }
        crc
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change_block(luma: &mut [u8], index: usize, change: impl Fn(&mut u8)) {
        let (x, y) = block_origin(index);
        for row in y..y + BLOCK {
            luma[row * PICTURE_WIDTH + x..][..BLOCK].iter_mut().for_each(&change);
        }
    }

    fn paint(id: u16) -> Vec<u8> {
        let mut luma = vec![90; PICTURE_WIDTH * PICTURE_HEIGHT];
        let code = u32::from(id) << CHECK_BITS | u32::from(crc8(id));
        for index in 0..24 {
            let value = if code >> (23 - index) & 1 == 1 { 235 } else { 16 };
            change_block(&mut luma, index, |pixel| *pixel = value);
        }
        luma
    }

    fn scale_down(luma: &[u8], factor: usize) -> Vec<u8> {
        let (width, height) = (PICTURE_WIDTH / factor, PICTURE_HEIGHT / factor);
        (0..width * height)
            .map(|i| luma[i / width * factor * PICTURE_WIDTH + i % width * factor])
            .collect()
    }

    #[test]
    fn every_bit_is_read_back_at_full_and_at_reduced_size() {
        for id in [0, 1, 2, 0x5555, 0xaaaa, 0x8000, u16::MAX, 1234] {
            let luma = paint(id);
            assert_eq!(read(&luma, 1920, 1080), Some(id));
            assert_eq!(read(&scale_down(&luma, 3), 640, 360), Some(id));
        }
    }

    #[test]
    fn black_white_grey_and_flipped_blocks_are_no_id() {
        for value in [0, 16, 128, 235, 255] {
            assert_eq!(read(&vec![value; 640 * 360], 640, 360), None, "all {value}");
        }
        let good = paint(777);
        for index in 0..24 {
            let mut luma = good.clone();
            change_block(&mut luma, index, |pixel| *pixel = 251 - *pixel);
            assert_eq!(read(&luma, 1920, 1080), None, "block {index} flipped");
        }
    }

    #[test]
    fn expressions_of_the_check_bits_equal_the_crc() {
        // Evaluates the sums of mod(floor(n/D),2) terms as ffmpeg does.
        let evaluate = |expression: &str, n: u32| -> u32 {
            let inner = expression.strip_prefix("mod(").unwrap().strip_suffix(",2)").unwrap();
            let term = |term: &str| match term.strip_prefix("mod(floor(n/") {
                Some(rest) => n / rest.strip_suffix("),2)").unwrap().parse::<u32>().unwrap() % 2,
                None => term.parse::<u32>().unwrap(),
            };
            inner.split('+').map(term).sum::<u32>() % 2
        };
        for id in [0_u16, 1, 300, 4711, u16::MAX] {
            for bit in 0..CHECK_BITS {
                let expected = u32::from(crc8(id) >> (CHECK_BITS - 1 - bit) & 1);
                let expression = bit_expression(ID_BITS + bit);
                assert_eq!(evaluate(&expression, u32::from(id)), expected, "{id} bit {bit}");
            }
        }
    }
}
