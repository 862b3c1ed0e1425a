//! The owners of GPU work, all or those that match a query.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use super::app_state::{AppState, not_encoded, unavailable};
use crate::api::owners::OwnerQuery;
use crate::format::ResponseFormat;

/// Serves the owners that match the query.
pub async fn respond(State(state): State<Arc<AppState>>, uri: Uri, headers: HeaderMap) -> Response {
    let query = match parse_query(uri.query().unwrap_or("")) {
        Ok(query) => query,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    if query == OwnerQuery::default() {
        return state.respond(ResponseFormat::Owners, &headers).await;
    }
    if let Err(why) = state.fresh() {
        return unavailable(why);
    }
    match state.responses.owners(query).await {
        Ok(text) => ([(CONTENT_TYPE, ResponseFormat::Owners.content_type())], text).into_response(),
        Err(error) => not_encoded(&error),
    }
}

fn parse_query(query: &str) -> Result<OwnerQuery, String> {
    let mut asked = OwnerQuery::default();
    for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let text = || decoded(value).ok_or_else(|| format!("{key} must be percent-encoded UTF-8.\n"));
        match key {
            "owner" => asked.owner = Some(text()?),
            "slurm_job" => asked.slurm_job = Some(text()?),
            "limit" => {
                let limit = value.parse().map_err(|_| format!("{key} must be a whole number.\n"))?;
                asked.limit = Some(limit);
            }
            _ => {}
        }
    }
    Ok(asked)
}

/// Decodes the percent-encoding of a value. Returns `None` if the encoding is invalid or the result is not UTF-8.
fn decoded(value: &str) -> Option<String> {
    let mut parts = value.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let digit = |at| char::from(*digits.as_bytes().get(at)?).to_digit(16);
        bytes.push(u8::try_from(digit(0)? * 16 + digit(1)?).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_texts_and_a_number() {
        let asked = parse_query("owner=pod/a%2Fb%20%C3%A9/c&slurm_job=42&limit=3&other=x&");
        let owner = Some("pod/a/b é/c".to_owned());
        assert_eq!(asked, Ok(OwnerQuery { owner, slurm_job: Some("42".into()), limit: Some(3) }));
        assert_eq!(parse_query(""), Ok(OwnerQuery::default()));
        for bad in ["limit=-1", "limit=", "owner=%", "owner=%4", "owner=%+4", "owner=%é", "slurm_job=%ff"] {
            assert!(parse_query(bad).is_err(), "{bad}");
        }
    }
}
