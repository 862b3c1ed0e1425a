//! Faults: facts of both tellers, merged so that one fault counts once, counted, and kept in a list.

use std::collections::HashMap;

use crate::fact::{Fact, Teller};

/// What is known of the facts told so far.
#[derive(Debug, Default)]
pub struct Faults {
    /// The life of each teller and the number of its newest fact.
    told: HashMap<Teller, (u64, u64)>,
}

impl Faults {
    /// Notes the number of a fact; gives how many are missing before it.
    pub fn missing(&mut self, life: u64, fact: &Fact) -> u64 {
        let last = match self.told.get(&fact.teller) {
            Some((of, number)) if *of == life => *number,
            _ => 0,
        };
        self.told.insert(fact.teller, (life, fact.number.max(last)));
        fact.number.saturating_sub(last + 1)
    }
}
