//! Text from outside, made fit for labels and logs.

/// A text on one line, of at most so many bytes.
pub fn clean(text: &str, most: usize) -> String {
    let mut out = String::new();
    for char in text.trim().chars() {
        let char = if char.is_control() { ' ' } else { char };
        if out.len() + char.len_utf8() > most {
            break;
        }
        out.push(char);
    }
    out
}
