//! Parser for lists in CSV with the columns field, type and help. Like dcgm-exporter, it follows the dialect of Go's
//! `encoding/csv` with `#` for comments, but it skips only the faulty rows.

use super::{FieldList, MAX_ROWS, ProblemKind};
use crate::fields::Release;

/// Maximum length of a quoted value in bytes, so that an unclosed quote does not consume the rest of the file.
const MAX_QUOTED: usize = 4096;

/// Adds the rows of a text to the list. `place` is the prefix of the line numbers in problems.
pub(super) fn read(list: &mut FieldList, place: &str, text: &str, release: Release) {
    let mut reader = CsvReader { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 0 };
    let mut rows = 0;
    while let Some((line, record)) = reader.next() {
        let place = format!("{place}line {line}");
        rows += 1;
        if rows > MAX_ROWS {
            let why = format!("the rows from here on are not read: {MAX_ROWS} are too many");
            return list.note(&place, "", ProblemKind::Malformed(why));
        }
        let columns = match record {
            Ok(columns) => columns,
            Err(why) => {
                list.note(&place, "", ProblemKind::Malformed(why.to_owned()));
                continue;
            }
        };
        // Values are trimmed of spaces, but not of tabs.
        let columns: Vec<&str> = columns.iter().map(|column| column.trim_matches(' ')).collect();
        match *columns.as_slice() {
            [name, kind, help] => list.add_row(&place, name, kind, help, release),
            _ => {
                let name = columns.first().copied().unwrap_or_default();
                let next = "a comma in the help needs quotes around the help";
                let why = format!("3 columns are field, type and help, {} found; {next}", columns.len());
                list.note(&place, name, ProblemKind::Malformed(why));
            }
        }
    }
}

/// Reader of a text's records with their line numbers.
struct CsvReader<'a> {
    rest: &'a str,
    /// Number of lines read so far.
    line: usize,
}

type CsvRecord = Result<Vec<String>, &'static str>;

impl CsvReader<'_> {
    fn next(&mut self) -> Option<(usize, CsvRecord)> {
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let line = self.rest.lines().next().unwrap_or_default();
            let number = self.line + 1;
            if line.is_empty() || line.starts_with('#') {
                self.skip(line_length(self.rest));
                continue;
            }
            let record = record(self.rest).map(|(columns, length)| {
                self.skip(length);
                columns
            });
            if record.is_err() {
                self.skip(line_length(self.rest));
            }
            return Some((number, record));
        }
    }

    fn skip(&mut self, bytes: usize) {
        let (skipped, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.line += skipped.matches('\n').count();
        self.rest = rest;
    }
}

/// Returns the length of the first line in bytes, including the line break.
fn line_length(text: &str) -> usize {
    text.find('\n').map_or(text.len(), |at| at + 1)
}

/// Parses the record at the start of a text. Returns its values and its length, including the line break.
fn record(text: &str) -> Result<(Vec<String>, usize), &'static str> {
    let mut columns = Vec::new();
    let mut rest = text;
    loop {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (value, after) = unquote(quoted).ok_or("an unclosed quote")?;
            columns.push(value);
            rest = after;
        } else {
            let end = rest.find([',', '\n']).unwrap_or(rest.len());
            let (value, after) = rest.split_at(end);
            let value =
                if after.starts_with(',') { value } else { value.strip_suffix('\r').unwrap_or(value) };
            if value.trim_start_matches(' ').starts_with('"') {
                return Err("a blank before a quote: remove it");
            }
            if value.contains('"') {
                return Err("a quote within a value: put quotes around the value and double the one within");
            }
            columns.push(value.to_owned());
            rest = after;
        }
        if let Some(after) = rest.strip_prefix(',') {
            rest = after;
            continue;
        }
        let end = rest.strip_prefix("\r\n").or_else(|| rest.strip_prefix('\n'));
        return match end {
            Some(after) => Ok((columns, text.len() - after.len())),
            None if rest.is_empty() => Ok((columns, text.len())),
            None => Err("text after the closing quote; double a quote within a value"),
        };
    }
}

/// Returns the value up to the closing quote, and the text after the quote.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = quoted;
    loop {
        let (part, after) = rest.split_once('"')?;
        value.push_str(part);
        if value.len() > MAX_QUOTED {
            return None;
        }
        match after.strip_prefix('"') {
            Some(after) => {
                value.push('"');
                rest = after;
            }
            None => return Some((value, after)),
        }
    }
}
