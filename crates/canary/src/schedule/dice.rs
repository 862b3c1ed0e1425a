//! Numbers by chance that follow from a seed (splitmix64, Vigna 2015).

/// The dice.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall as the seed says.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to 1, without it.
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dice_fall_as_published() {
        // First outputs of splitmix64 for the seed 1234567 (Rosetta Code, "Pseudo-random numbers/Splitmix64").
        let mut dice = Dice::new(1_234_567);
        assert_eq!([dice.number(), dice.number()], [6457827717110365317, 3203168211198807973]);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&dice.unit())));
    }
}
