//! Scripts and styles, compiled into the program.
//!
//! Their address contains a hash of their content, so browsers can keep them forever.

use std::sync::OnceLock;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::api::Problem;

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Name, content type and content.
const ASSETS: [(&str, &str, &str); 6] = [
    ("dashboard.css", "text/css; charset=utf-8", include_str!("../../assets/dashboard.css")),
    ("theme.js", SCRIPT, include_str!("../../assets/theme.js")),
    ("dashboard.js", SCRIPT, include_str!("../../assets/dashboard.js")),
    ("actions.js", SCRIPT, include_str!("../../assets/actions.js")),
    ("live.js", SCRIPT, include_str!("../../assets/live.js")),
    ("icon.svg", "image/svg+xml", include_str!("../../assets/icon.svg")),
];

/// Browsers keep an asset for a year: another content has another address.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// Returns the hash of all assets.
fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let mut hash = Sha256::new();
        for (name, _, content) in ASSETS {
            hash.update(name);
            hash.update(content);
        }
        hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    })
}

/// Returns the address of an asset.
pub(super) fn path(base: &str, name: &str) -> String {
    format!("{base}/assets/{}/{name}", version())
}

pub(super) async fn get(path: Result<Path<(String, String)>, PathRejection>) -> Response {
    let Ok(Path((wanted, name))) = path else {
        return Problem::invalid("the path is not valid UTF-8").into_response();
    };
    let found = ASSETS.iter().find(|(known, _, _)| wanted == version() && *known == name);
    match found {
        Some((_, content_type, content)) => {
            ([(header::CONTENT_TYPE, *content_type), (header::CACHE_CONTROL, FOR_EVER)], *content)
                .into_response()
        }
        None => Problem::not_found("the asset was not found: reload the page").into_response(),
    }
}
