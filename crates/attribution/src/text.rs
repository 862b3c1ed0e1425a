//! Turns external text into label values that are bounded and printable and stay distinct.

/// Maximum length in bytes of a label value from a process, a path or the kubelet.
pub const MOST_BYTES: usize = 128;

/// Length of a cut text, which leaves room for `~` and sixteen digits.
const KEPT: usize = MOST_BYTES - 17;

/// Returns the text as a label value. Unprintable characters become `_`. A text longer than [`MOST_BYTES`] is
/// cut and ends in `~` and a hash of the whole text, so that different texts stay different.
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

/// Returns whether a character is invisible or changes the writing direction, which would make one name look
/// like another.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Returns the 64-bit FNV-1a hash, which distinguishes texts but gives no protection against forgery.
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
