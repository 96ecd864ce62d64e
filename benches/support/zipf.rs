//! Which session is read next, when a few are read often: rank `r` with a weight of `1 / r^exponent`.

use super::trace::random::Random;

/// A seeded stream of numbers below `n`, the ranks scattered over them.
pub(crate) struct Zipf {
    /// Sums of the weights up to each rank.
    sums: Vec<f64>,
    random: Random,
}

impl Zipf {
    /// A stream of numbers below `n`.
    pub(crate) fn new(seed: u64, n: usize, exponent: f64) -> Self {
        let weights = (1..=n).map(|rank| (rank as f64).powf(-exponent));
        let sums = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self { sums: sums.collect(), random: Random::new(seed) }
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> usize {
        let n = self.sums.len();
        let share = self.random.below(1 << 30) as f64 / f64::from(1 << 30);
        let rank = self.sums.partition_point(|sum| *sum < share * self.sums[n - 1]);
        // A prime: any two ranks are different numbers unless it divides `n`.
        rank * 7_919 % n
    }

    /// A number below `n`, any as likely as any other.
    pub(crate) fn even(&mut self, n: usize) -> usize {
        self.random.below(n)
    }
}
