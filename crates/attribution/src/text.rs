//! Text from outside as the value of a label: bounded, printable, and still telling apart what differs.

/// Longest value of a label that is taken from a process, a path or the kubelet, in bytes.
pub const MOST_BYTES: usize = 128;

/// What a text is cut to, so that `~` and sixteen digits fit behind it.
const KEPT: usize = MOST_BYTES - 17;

/// The text as a label: what cannot be printed becomes `_`. A longer one than [`MOST_BYTES`] is cut, and ends in
/// `~` and a hash of all of it, so that two long ones stay two.
pub fn label(text: &str) -> String {
    let plain = |c: char| if c.is_control() || is_invisible(c) { '_' } else { c };
    if text.len() <= MOST_BYTES {
        return text.chars().map(plain).collect();
    }
    let mut cut = String::with_capacity(MOST_BYTES);
    for c in text.chars().map(plain) {
        if cut.len() + c.len_utf8() > KEPT {
            break;
        }
        cut.push(c);
    }
    format!("{cut}~{:016x}", fnv1a(text.as_bytes()))
}

/// Marks that turn the direction of writing or are not seen: they would make one name look like another.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// FNV-1a, 64 bits: tells apart, protects from nothing.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_cannot_be_printed_is_replaced_and_what_differs_stays_apart() {
        assert_eq!(label("a\nb\"c\\\u{7f}\u{202e}"), "a_b\"c\\__");
        let (one, other) = ("x".repeat(4096), "x".repeat(4095));
        assert_ne!(label(&one), label(&other));
        assert_eq!((label(&one).len(), label(&"y".repeat(MOST_BYTES)).len()), (MOST_BYTES, MOST_BYTES));
    }

    proptest! {
        #[test]
        fn a_label_is_bounded_and_plain(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let text = label(&String::from_utf8_lossy(&bytes));
            prop_assert!(text.len() <= MOST_BYTES);
            prop_assert!(!text.chars().any(char::is_control));
        }
    }
}
