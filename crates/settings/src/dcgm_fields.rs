//! The fields of dcgm-exporter's page: the default of its release, or a file.

use dcgm::list::{FieldList, Problem};

use super::load::{ConfigErrors, Loaded};

impl Loaded {
    /// The fields of dcgm-exporter's page. An error if their file cannot be read; what is wrong with its rows is in
    /// [`Loaded::dcgm_warnings`].
    pub fn dcgm_fields(&self) -> Result<FieldList, ConfigErrors> {
        let settings = &self.config.dcgm;
        if settings.fields_file.as_os_str().is_empty() {
            return Ok(FieldList::default_of(settings.release));
        }
        FieldList::read(&settings.fields_file, settings.release).map_err(|error| {
            let file = settings.fields_file.display();
            ConfigErrors(vec![
                self.error("dcgm.fields_file", format_args!("{file}: {error}; correct the path")),
            ])
        })
    }

    /// What the page lacks of its list: a line a row, and a last one that counts them.
    pub fn dcgm_warnings(&self, fields: &FieldList) -> Vec<String> {
        let file = self.config.dcgm.fields_file.as_path();
        let line = |problem: &Problem| format!("{}: {problem}", file.display());
        let mut lines: Vec<String> = fields.problems.iter().map(line).collect();
        let served = fields.columns.len() + fields.labels.len();
        match fields.problem_count() {
            0 => {}
            count => lines.push(self.error(
                "dcgm.fields_file",
                format_args!("{}: {count} problems, {served} fields are served", file.display()),
            )),
        }
        if !self.config.gpm.enabled && !file.as_os_str().is_empty() {
            let names: Vec<&str> = fields.profiling().map(|column| column.name.as_str()).collect();
            if !names.is_empty() {
                let (names, next) = (names.join(", "), "set it to true, or remove them");
                lines.push(self.error("gpm.enabled", format_args!("false: no value of {names}; {next}")));
            }
        }
        lines
    }

    /// The error of a list of which no family is left.
    pub fn dcgm_error(&self, fields: &FieldList) -> Option<String> {
        let file = self.config.dcgm.fields_file.display();
        let why = "none of its rows can be served, so that the page is empty; correct the file";
        fields.is_empty().then(|| self.error("dcgm.fields_file", format_args!("{file}: {why}")))
    }
}
