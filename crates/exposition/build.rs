//! Writes a table of the embedded files (`alerts/**/*.yml` and `dashboards/*.json`) for `assets.rs`. Concatenates and
//! compresses the script and the style sheet of the status page.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Files of the status page with their licences and their parts, relative to the folder of this crate.
const PAGE_FILES: [(&str, &[&str], &[&str]); 2] = [
    (
        "script.js",
        &["vendor/uPlot.LICENSE", "vendor/morphdom.LICENSE"],
        &["vendor/uPlot.iife.min.js", "vendor/morphdom-umd.min.js", "src/page/live.js", "src/page/charts.js"],
    ),
    ("style.css", &["vendor/uPlot.LICENSE"], &["vendor/uPlot.min.css", "src/page/style.css"]),
];

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    for (name, licences, parts) in PAGE_FILES {
        join(&out, name, licences, parts)?;
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    let mut files = Vec::new();
    collect(&root, Path::new("alerts"), "yml", true, &mut files)?;
    collect(&root, Path::new("dashboards"), "json", false, &mut files)?;
    files.sort();
    // A new file anywhere in `alerts` requires a rebuild. `dashboards` is not watched as a folder, because it also
    // contains tools.
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../alerts");
    let mut table = String::from("&[\n");
    for file in &files {
        println!("cargo::rerun-if-changed=../../{file}");
        // The table contains no absolute paths, because another checkout may share the target folder.
        let text =
            format!("include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {:?}))", format!("/../../{file}"));
        // Writing to a string cannot fail.
        let _ = writeln!(table, "Asset {{ path: {:?}, text: {text}, gzip: None }},", format!("/{file}"));
    }
    table.push_str("]\n");
    fs::write(out.join("assets.rs"), table)
}

/// Writes a file of the page, both plain and compressed.
fn join(out: &Path, name: &str, licences: &[&str], parts: &[&str]) -> io::Result<()> {
    let read = |path: &str| {
        println!("cargo::rerun-if-changed={path}");
        fs::read_to_string(path)
    };
    let mut text = String::new();
    for path in licences {
        text += &format!("/*!\n{}*/\n", read(path)?);
    }
    for path in parts {
        text += read(path)?.trim_end();
        text.push('\n');
    }
    fs::write(out.join(name), &text)?;
    let mut gzip = GzEncoder::new(fs::File::create(out.join(format!("{name}.gz")))?, Compression::best());
    gzip.write_all(text.as_bytes())?;
    gzip.finish()?.flush()
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
