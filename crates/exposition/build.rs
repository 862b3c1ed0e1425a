//! Finds what is embedded: `alerts/**/*.yml` and `dashboards/*.json`. Writes a table of them for `assets.rs`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    let mut files = Vec::new();
    collect(&root, Path::new("alerts"), "yml", true, &mut files)?;
    collect(&root, Path::new("dashboards"), "json", false, &mut files)?;
    files.sort();
    // Of `alerts` the whole folder is looked at for new files. Not of `dashboards`: what builds and draws the boards
    // is there too, and changes without a change of them.
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../alerts");
    let mut table = String::from("&[\n");
    for file in &files {
        println!("cargo::rerun-if-changed=../../{file}");
        // No path of this checkout stays in the table: another one may build with the same target folder.
        let text =
            format!("include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {:?}))", format!("/../../{file}"));
        // Writing to a string cannot fail.
        let _ = writeln!(table, "Asset {{ path: {:?}, text: {text} }},", format!("/{file}"));
    }
    table.push_str("]\n");
    fs::write(PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("assets.rs"), table)
}

fn collect(root: &Path, folder: &Path, ending: &str, below: bool, files: &mut Vec<String>) -> io::Result<()> {
    let whole = root.join(folder);
    if !whole.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(whole)? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if below {
                collect(root, &path, ending, below, files)?;
            }
        } else if path.extension().is_some_and(|found| found == ending) {
            files.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}
