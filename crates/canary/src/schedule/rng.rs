//! Random numbers derived from a seed (splitmix64, Vigna 2015).

use crate::reference::splitmix64;

#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn number(&mut self) -> u64 {
        let number = splitmix64(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        number
    }

    /// Returns a number from 0 up to but not including 1.
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_published() {
        // First outputs of splitmix64 for the seed 1234567 (Rosetta Code, "Pseudo-random numbers/Splitmix64").
        let mut rng = Rng::new(1_234_567);
        assert_eq!([rng.number(), rng.number()], [6457827717110365317, 3203168211198807973]);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&rng.unit())));
    }
}
