//! Man pages and shell completions, made from the command line itself: for packages.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

/// Writes a page for the program and for each command into `man1`, and the completions into the folder of each shell: below
/// `out` as below `/usr/share`.
pub fn write(mut command: Command, out: &Path) -> io::Result<String> {
    let name = command.get_name().to_owned();
    let folder = |path: &str| {
        let folder = out.join(path);
        fs::create_dir_all(&folder).map(|()| folder)
    };
    clap_mangen::generate_to(command.clone(), folder("man/man1")?)?;
    for (shell, path, file) in [
        (Shell::Bash, "bash-completion/completions", name.clone()),
        // Debian's folder: the .rpm has them in zsh/site-functions.
        (Shell::Zsh, "zsh/vendor-completions", format!("_{name}")),
        (Shell::Fish, "fish/vendor_completions.d", format!("{name}.fish")),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, &name, &mut text);
        fs::write(folder(path)?.join(file), text)?;
    }
    Ok(format!("wrote man pages and completions to {}", out.display()))
}
