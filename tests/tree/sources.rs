//! The product's Rust sources, as the repository has them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

/// One source file of the product.
pub struct Source {
    /// Path from the root of the repository.
    pub path: String,
    /// Folder of the crate: `src`, or one below `crates`.
    pub krate: String,
    /// Path of the module inside the crate; empty for the crate root.
    pub module: Vec<String>,
    /// The text without comments and without the unit tests at the end.
    pub code: String,
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// Folders of the crates below `crates`, in order.
pub fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).expect("there are crates");
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Every file below a folder, as a path from the root of the repository.
pub fn files(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(root().join(folder)) else { return found };
    for entry in entries {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().into_string().unwrap());
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// The text of a file.
pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns true for files that hold only tests or their data.
pub fn is_test(path: &str) -> bool {
    path.ends_with("tests.rs")
        || path.ends_with("_test.rs")
        || path.contains("fixture")
        || ["/tests/", "/benches/", "/examples/"].iter().any(|folder| path.contains(folder))
}

/// The numbered lines of a Rust file without the items under `#[cfg(test)]`.
pub fn production(path: &str) -> Vec<(usize, String)> {
    static TEST: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^\s*#\[cfg\((test|all\(test|any\(test)").unwrap());
    static TEXT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#""(\\.|[^"\\])*"|'.'|//.*"#).unwrap());
    let text = read(path);
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.to_owned()));
    let mut found = Vec::new();
    while let Some((at, line)) = lines.next() {
        if !TEST.is_match(&line) {
            found.push((at, line));
            continue;
        }
        // The item ends with its closing brace, or, without braces, at a semicolon or comma.
        let (mut depth, mut opened) = (0, false);
        for (_, line) in lines.by_ref() {
            let code = TEXT.replace_all(&line, "");
            depth += code.matches('{').count() as i64 - code.matches('}').count() as i64;
            opened |= code.contains('{');
            if (opened && depth <= 0) || (!opened && code.trim_end().ends_with([';', ','])) {
                break;
            }
        }
    }
    found
}

/// The product's code: everything in `src` and `crates/*/src`, tests apart.
pub fn product() -> Vec<Source> {
    static COMMENT: LazyLock<Regex> = LazyLock::new(|| Regex::new("(?m)//.*$").unwrap());
    let mut roots = vec![("src".to_owned(), "src".to_owned())];
    roots.extend(crates().into_iter().map(|name| (format!("crates/{name}/src"), name)));
    let mut sources = Vec::new();
    for (folder, krate) in roots {
        for path in files(&folder) {
            let Some(module) = path.strip_prefix(&format!("{folder}/")).and_then(|p| p.strip_suffix(".rs"))
            else {
                continue;
            };
            if is_test(&path) {
                continue;
            }
            let module: Vec<String> = match module {
                "lib" => Vec::new(),
                module => module.split('/').map(str::to_owned).collect(),
            };
            let text = read(&path);
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let code = COMMENT.replace_all(text, "").into_owned();
            sources.push(Source { path, krate: krate.clone(), module, code });
        }
    }
    sources
}
