//! The global options: accepted by every command, and listed only by the commands that use them.

use clap::{Command, FromArgMatches};

use super::{Cli, USED_OPTIONS, definition};

const OPTIONS: [&str; 7] =
    ["--config", "--listen", "--nvml-library", "--cuda-library", "--state-dir", "--root", "--log-level"];

/// Complete command lines of all commands.
const COMMAND_LINES: [&[&str]; 30] = [
    &["serve"],
    &["check-config"],
    &["metrics"],
    &["snapshot"],
    &["snapshot", "--recording", "file"],
    &["health"],
    &["doctor"],
    &["doctor", "--cuda", "12.8"],
    &["canary"],
    &["compat-diff", "http://localhost:9400/metrics"],
    &["topology"],
    &["assess", "--pid", "1"],
    &["assess", "--compare", "before", "after"],
    &["assets"],
    &["driver", "release"],
    &["driver", "resume"],
    &["driver", "status"],
    &["nvswitch", "clear", "--reason", "text"],
    &["gpm", "off"],
    &["gpm", "on"],
    &["window", "start", "--for", "2h", "--reason", "text"],
    &["window", "end", "name"],
    &["window", "list"],
    &["manual", "--out", "dir"],
    &["pod", "folders", "state", "run"],
    &["pod", "relay", "socket", "kubelet"],
    &["sampler"],
    &["canary-child"],
    &["topology-child"],
    &["canary", "clear", "--gpu", "3", "--reason", "text"],
];

fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
    let matches = Cli::definition().try_get_matches_from([&["gpu-node-exporter"], words].concat())?;
    Cli::from_arg_matches(&matches)
}

fn option_value(cli: &Cli, option: &str) -> Option<String> {
    let overrides = cli.overrides.clone();
    match option {
        "--config" => overrides.config.map(|path| path.display().to_string()),
        "--listen" => overrides.listen,
        "--nvml-library" => overrides.nvml_library,
        "--cuda-library" => overrides.cuda_library,
        "--state-dir" => overrides.state_dir,
        "--root" => overrides.root,
        _ => overrides.log_level,
    }
}

#[test]
fn every_command_accepts_every_global_option_at_every_position() {
    for line in COMMAND_LINES {
        parse(line).map(drop).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        for option in OPTIONS {
            // `canary` refuses options of its own before `clear`.
            let positions = (0..=line.len()).filter(|at| {
                let (before, last) = (&line[..*at], line[..*at].last().copied().unwrap_or_default());
                let refused = line.contains(&"clear") && before == ["canary"];
                let splits_values = last.starts_with("--") || last == "before";
                !(refused || splits_values)
            });
            for at in positions {
                let words = [&line[..at], &[option, "value"], &line[at..]].concat();
                let cli = parse(&words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
                assert_eq!(option_value(&cli, option).as_deref(), Some("value"), "{words:?}");
            }
        }
    }
}

/// The long options in the help of a command, and of the commands below it.
fn visible(command: &Command, path: &str, found: &mut Vec<(String, Vec<String>)>) {
    let options = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let options = options.filter_map(|arg| arg.get_long()).map(|long| format!("--{long}"));
    let global = options.filter(|option| OPTIONS.contains(&option.as_str())).collect();
    found.push((path.to_owned(), global));
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        visible(inner, format!("{path} {}", inner.get_name()).trim(), found);
    }
}

#[test]
fn the_help_of_a_command_lists_the_options_that_it_uses() {
    for accept_all in [true, false] {
        let mut command = definition(accept_all);
        command.build();
        let mut found = Vec::new();
        visible(&command, "", &mut found);
        for (path, options) in &found {
            let name = path.rsplit(' ').next().unwrap();
            let parent = path.split(' ').next().unwrap();
            let used = |name: &str| USED_OPTIONS.iter().find(|(entry, _)| *entry == name);
            let mut expected: Vec<String> = match used(name).or_else(|| used(parent)) {
                Some((_, ids)) => ids.iter().map(|id| format!("--{}", id.replace('_', "-"))).collect(),
                None => OPTIONS.map(str::to_owned).to_vec(),
            };
            let mut options = options.clone();
            options.sort();
            expected.sort();
            assert_eq!(options, expected, "{path} (accept_all: {accept_all})");
        }
        let lists =
            |path: &str| found.iter().find(|(name, _)| name == path).map(|(_, options)| options.len());
        assert_eq!((lists(""), lists("serve"), lists("assess")), (Some(7), Some(7), Some(1)));
        assert_eq!(
            (lists("canary clear"), lists("window start"), lists("metrics")),
            (Some(1), Some(1), Some(0))
        );
    }
}

#[test]
fn global_options_have_a_heading() {
    let help = Cli::definition().render_long_help().to_string();
    let (_, global) = help.split_once("Global options:\n").expect("a heading");
    assert!(OPTIONS.iter().all(|option| global.contains(option)), "{help}");
}
