//! SSIM of a plane, as computed by x264 and ffmpeg's filter `ssim`: windows of 8x8 pixels, four
//! apart (Wang et al. 2004, with a flat window).

/// Sums of a block of 4x4 pixels: of each picture, of all squares, of the products.
type Sums = [u32; 4];

/// The mean over all windows of two planes of `width` pixels a row; 1 for equal planes. Planes
/// below 8x8 pixels have no window and count as equal.
pub fn ssim(a: &[u8], b: &[u8], width: usize) -> f64 {
    let height = a.len().min(b.len()) / width.max(1);
    let (columns, rows) = (width / 4, height / 4);
    if columns < 2 || rows < 2 {
        return 1.0;
    }
    let row_sums = |row: usize| -> Vec<Sums> {
        (0..columns).map(|column| block(a, b, width, column * 4, row * 4)).collect()
    };
    let mut above = row_sums(0);
    let mut total = 0.0;
    for row in 1..rows {
        let below = row_sums(row);
        for column in 1..columns {
            let four = [above[column - 1], above[column], below[column - 1], below[column]];
            total += window(four);
        }
        above = below;
    }
    total / ((columns - 1) * (rows - 1)) as f64
}

/// In decibels, at most [`DB_MOST`].
pub fn db(ssim: f64) -> f64 {
    (-10.0 * (1.0 - ssim).max(1e-12).log10()).min(DB_MOST)
}

fn block(a: &[u8], b: &[u8], width: usize, x: usize, y: usize) -> Sums {
    let mut sums = [0; 4];
    for row in y..y + 4 {
        let at = row * width + x;
        for (p, q) in a[at..at + 4].iter().zip(&b[at..at + 4]) {
            let (p, q) = (u32::from(*p), u32::from(*q));
            sums[0] += p;
            sums[1] += q;
            sums[2] += p * p + q * q;
            sums[3] += p * q;
        }
    }
    sums
}

fn window(four: [Sums; 4]) -> f64 {
    let sum = |i: usize| f64::from(four.iter().map(|sums| sums[i]).sum::<u32>());
    let (a, b, squares, products) = (sum(0), sum(1), sum(2), sum(3));
    let variances = squares * PIXELS - a * a - b * b;
    let covariance = products * PIXELS - a * b;
    let means = (2.0 * a * b + C1) / (a * a + b * b + C1);
    means * (2.0 * covariance + C2) / (variances + C2)
}

/// Pixels of a window.
const PIXELS: f64 = 64.0;
/// (0.01 x 255)^2 and (0.03 x 255)^2, for sums instead of means and unbiased variances, rounded as
/// in x264.
const C1: f64 = 416.0;
const C2: f64 = 235_963.0;
const DB_MOST: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_pictures_have_one_and_others_less() {
        let picture: Vec<u8> = (0..64 * 48).map(|i| (i * 7 % 251) as u8).collect();
        assert_eq!(ssim(&picture, &picture, 64), 1.0);
        assert_eq!(db(1.0), DB_MOST);
        assert!((db(0.99) - 20.0).abs() < 1e-9 && (db(0.9) - 10.0).abs() < 1e-9);
        assert!(db(-1.0) < 0.0);
        let inverse: Vec<u8> = picture.iter().map(|it| 255 - it).collect();
        assert!(ssim(&picture, &inverse, 64) < 0.0);
        let darker: Vec<u8> = picture.iter().map(|it| it / 2).collect();
        assert!((0.3..0.95).contains(&ssim(&picture, &darker, 64)));
    }

    #[test]
    fn flat_pictures_differ_by_their_means() {
        let check = |a: u8, b: u8, expected: f64| {
            let found = ssim(&[a; 256], &[b; 256], 16);
            assert!((found - expected).abs() < 1e-4, "{a} {b}: {found}");
        };
        let means = |a: f64, b: f64| (2.0 * a * b + 6.5025) / (a * a + b * b + 6.5025);
        check(100, 100, 1.0);
        check(0, 255, means(0.0, 255.0));
        check(100, 120, means(100.0, 120.0));
        // Planes that are too small count as equal.
        assert_eq!(ssim(&[], &[], 0), 1.0);
        assert_eq!(ssim(&[1; 49], &[2; 49], 7), 1.0);
    }
}
