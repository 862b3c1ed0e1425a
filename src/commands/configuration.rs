//! `gpu-node-exporter serve` and `gpu-node-exporter check-config`.

use settings::{ConfigErrors, Overrides};

use super::{CommandResult, Failure, Output, checked_config, warn};
use crate::reload::{self, Configuration};
use crate::{log, serve};
use collectors::topology::declared;

/// Serves metrics until a signal stops the daemon.
pub fn serve(overrides: &Overrides, trim_heap: fn()) -> CommandResult {
    let configuration = Configuration::load(overrides).map_err(Failure::bad_configuration)?;
    let access = reload::web_config(&configuration.loaded.config).map_err(Failure::bad_configuration)?;
    log::to_stderr(configuration.loaded.config.log.level);
    configuration.warn();
    for warning in access.iter().flat_map(|access| access.warnings()) {
        tracing::warn!("{warning}");
    }
    serve::run(configuration, overrides.clone(), access, trim_heap)?;
    Ok(Output::default())
}

/// Checks the settings and every file that they name. Returns the settings as TOML.
pub fn check(overrides: &Overrides) -> CommandResult {
    let loaded = checked_config(overrides)?;
    let (mut warnings, mut problems) = (settings::environment_warnings(), Vec::new());
    match reload::web_config(&loaded.config) {
        Ok(access) => warnings.extend(access.iter().flat_map(|access| access.warnings())),
        Err(ConfigErrors(errors)) => problems.extend(errors),
    }
    problems.extend(loaded.declared_layout().err().into_iter().flat_map(|ConfigErrors(errors)| errors));
    problems.extend(declared(loaded.config.topology.expected_file.as_deref()).err());
    match loaded.dcgm_fields() {
        Ok(fields) => {
            warnings.extend(loaded.dcgm_warnings(&fields));
            problems.extend(loaded.dcgm_error(&fields));
        }
        Err(ConfigErrors(errors)) => problems.extend(errors),
    }
    warnings.iter().for_each(|warning| warn(warning));
    match problems.is_empty() {
        true => Ok(loaded.to_toml().into()),
        false => Err(Failure::bad_configuration(ConfigErrors(problems))),
    }
}
