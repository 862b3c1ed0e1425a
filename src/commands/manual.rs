//! Man pages and shell completions for packages, generated from the command line definition.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

/// Write man pages and shell completions to a directory, laid out like /usr/share
#[derive(Args)]
pub(crate) struct ManualArguments {
    /// Directory to write to
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Writes a man page for the program and for each command, and the completions of bash, zsh and fish.
pub fn run(mut command: Command, arguments: &ManualArguments) -> io::Result<String> {
    let out = &arguments.out;
    let name = command.get_name().to_owned();
    let folder = |path: &str| {
        let folder = out.join(path);
        fs::create_dir_all(&folder).map(|()| folder)
    };
    clap_mangen::generate_to(command.clone(), folder("man/man1")?)?;
    for (shell, path, file) in [
        (Shell::Bash, "bash-completion/completions", name.clone()),
        // Debian uses this directory; the .rpm moves the file to zsh/site-functions.
        (Shell::Zsh, "zsh/vendor-completions", format!("_{name}")),
        (Shell::Fish, "fish/vendor_completions.d", format!("{name}.fish")),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, &name, &mut text);
        fs::write(folder(path)?.join(file), text)?;
    }
    Ok(format!("wrote man pages and completions to {}", out.display()))
}
