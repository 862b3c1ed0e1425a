//! Numbers that are the same on every machine.

/// From a seed other than 0 (xorshift).
pub struct Random(pub u64);

impl Random {
    /// Even from 0 to 1.
    pub fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normal deviates (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().max(1e-12).ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}
