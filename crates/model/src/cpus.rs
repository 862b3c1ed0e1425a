//! Sets of CPUs in the list format of the kernel, such as `0-7,16-23` in `/proc/PID/status` and `cpuset.cpus`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum accepted CPU number. The limit of the kernel (`CONFIG_NR_CPUS`) is 8192.
const MOST: u32 = 65_535;

/// Set of CPUs (or NUMA nodes) by their kernel numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

const NOT_CPUS: &str = "not a list of CPUs such as 0-7,16-23";

impl CpuSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Returns the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    pub fn insert(&mut self, cpu: u32) {
        self.0.insert(cpu);
    }

    /// Returns the CPUs that are in both sets.
    pub fn and(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }

    /// Returns the CPUs that are in at least one of the sets.
    pub fn or(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.union(&other.0).copied().collect())
    }

    /// Returns the CPUs of this set that are not in the other set.
    pub fn without(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.difference(&other.0).copied().collect())
    }

    /// Returns true if the other set contains all CPUs of this set.
    pub fn is_within(&self, other: &CpuSet) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> CpuSet {
        CpuSet(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<CpuSet, &'static str> {
        let mut set = BTreeSet::new();
        for range in text.trim().split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n <= MOST).ok_or(NOT_CPUS);
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(NOT_CPUS);
            }
            set.extend(first..=last);
        }
        Ok(CpuSet(set))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = &'static str;

    fn try_from(text: String) -> Result<CpuSet, &'static str> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(cpus: CpuSet) -> String {
        cpus.to_string()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["x", "1-", "-1", "7-3", "0-4294967295", "1,,x"] {
            assert_eq!(text.parse::<CpuSet>(), Err(NOT_CPUS), "{text}");
        }
        assert!("".parse::<CpuSet>().unwrap().is_empty() && "\n".parse::<CpuSet>().unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn a_set_is_what_its_text_says(cpus in prop::collection::btree_set(0u32..300, 0..100)) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set.clone());
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.into_iter().collect::<Vec<_>>());
        }
    }
}
