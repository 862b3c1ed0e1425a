//! Fields of the dcgm-exporter page: the default fields of the release, or the fields of a file.

use dcgm::list::{FieldList, Problem};

use super::load::{ConfigErrors, Loaded};

impl Loaded {
    /// Returns the fields of the dcgm-exporter page, or an error if their file cannot be read. [`Loaded::dcgm_warnings`]
    /// reports errors in single rows.
    pub fn dcgm_fields(&self) -> Result<FieldList, ConfigErrors> {
        let settings = &self.config.dcgm;
        let Some(file) = &settings.fields_file else {
            return Ok(FieldList::default_of(settings.release));
        };
        FieldList::read(file, settings.release).map_err(|error| {
            let file = file.display();
            ConfigErrors(vec![
                self.error("dcgm.fields_file", format_args!("{file}: {error}; correct the path")),
            ])
        })
    }

    /// Returns a warning for every row of the list that the page omits, followed by a summary, and a warning if the list
    /// contains profiling fields while GPM is disabled.
    pub fn dcgm_warnings(&self, fields: &FieldList) -> Vec<String> {
        let Some(file) = &self.config.dcgm.fields_file else { return Vec::new() };
        let line = |problem: &Problem| format!("{}: {problem}", file.display());
        let mut lines: Vec<String> = fields.problems.iter().map(line).collect();
        let served = fields.columns.len() + fields.labels.len();
        match fields.problem_count() {
            0 => {}
            count => lines.push(self.error(
                "dcgm.fields_file",
                format_args!("{}: {count} problems; {served} fields are served", file.display()),
            )),
        }
        if !self.config.gpm.enabled {
            let names: Vec<&str> = fields.profiling().map(|column| column.name.as_str()).collect();
            if !names.is_empty() {
                let (names, next) = (names.join(", "), "set the key to true, or remove the fields");
                lines.push(
                    self.error("gpm.enabled", format_args!("false, so that {names} have no values; {next}")),
                );
            }
        }
        lines
    }

    /// Returns the error if the list has no field that can be served.
    pub fn dcgm_error(&self, fields: &FieldList) -> Option<String> {
        let file = self.config.dcgm.fields_file.as_ref()?.display();
        let why = "no row can be served, so the page is empty; correct the file";
        fields.is_empty().then(|| self.error("dcgm.fields_file", format_args!("{file}: {why}")))
    }
}
