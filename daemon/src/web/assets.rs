//! The files of the page. They are part of the binary, so that it works without a network and fits its daemon.

use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use crate::drivers::refuse;

/// A file: its path below `/assets/`, its type, and what is in it.
struct Asset {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! asset {
    ($path:literal, $kind:expr) => {
        Asset { path: $path, kind: $kind, text: include_str!(concat!("site/", $path)) }
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const ICON: &str = "image/svg+xml";
const JSON: &str = "application/json";

const INDEX: Asset = asset!("index.html", HTML);
const FAVICON: Asset = asset!("icon.svg", ICON);
const OPENAPI: Asset = asset!("openapi.json", JSON);

const ASSETS: [Asset; 20] = [
    asset!("style.css", CSS),
    asset!("theme.js", SCRIPT),
    asset!("main.js", SCRIPT),
    asset!("api.js", SCRIPT),
    asset!("stream.js", SCRIPT),
    asset!("picture.js", SCRIPT),
    asset!("series.js", SCRIPT),
    asset!("health.js", SCRIPT),
    asset!("format.js", SCRIPT),
    asset!("elements.js", SCRIPT),
    asset!("chart.js", SCRIPT),
    asset!("table.js", SCRIPT),
    asset!("pages/overview.js", SCRIPT),
    asset!("pages/swarm.js", SCRIPT),
    asset!("pages/peers.js", SCRIPT),
    asset!("pages/traffic.js", SCRIPT),
    asset!("pages/events.js", SCRIPT),
    asset!("pages/resources.js", SCRIPT),
    asset!("pages/run.js", SCRIPT),
    asset!("pages/data.js", SCRIPT),
];

pub(super) async fn index(headers: HeaderMap) -> Response {
    served(&INDEX, &headers)
}

pub(super) async fn icon(headers: HeaderMap) -> Response {
    served(&FAVICON, &headers)
}

pub(super) async fn openapi(headers: HeaderMap) -> Response {
    served(&OPENAPI, &headers)
}

pub(super) async fn file(uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches("/assets/");
    match ASSETS.iter().find(|asset| asset.path == path) {
        Some(asset) => served(asset, &headers),
        None => {
            let error = format!("there is no file {}", uri.path());
            refuse(StatusCode::NOT_FOUND, &error, "open the page itself, at /")
        }
    }
}

/// A browser keeps a file and asks each time whether it is still that of this daemon.
fn served(asset: &Asset, headers: &HeaderMap) -> Response {
    let tag = format!("\"{}\"", &blake3::hash(asset.text.as_bytes()).to_hex()[..16]);
    let said = [(header::CACHE_CONTROL, "no-cache".to_owned()), (header::ETAG, tag.clone())];
    let has_it = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    if has_it {
        return (StatusCode::NOT_MODIFIED, said).into_response();
    }
    (said, [(header::CONTENT_TYPE, asset.kind)], asset.text).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::drivers::{DataReport, PrivacyReport};
    use crate::observe::report::{BannedPeer, CopyReport, DistrustedPeer, MemberReport, NodeReport};
    use crate::observe::synchronous::SynchronousReport;
    use crate::team::report::{HelperWait, TeamReport};

    /// Every file of the page but the two that have a route of their own, and no other.
    #[test]
    fn every_file_of_the_page_is_in_the_binary() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/web/site");
        let mut found = BTreeSet::new();
        for folder in ["", "pages/"] {
            for entry in std::fs::read_dir(root.join(folder)).expect("a folder").flatten() {
                if entry.path().is_file() {
                    found.insert(format!("{folder}{}", entry.file_name().to_string_lossy()));
                }
            }
        }
        let known = ASSETS.iter().chain([&INDEX, &FAVICON, &OPENAPI]).map(|asset| asset.path.to_owned());
        assert_eq!(found, known.collect());
    }

    #[test]
    fn the_page_takes_text_from_nobody_as_markup_and_asks_no_other_machine() {
        let forbidden = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"];
        for asset in ASSETS.iter().chain([&INDEX]) {
            for word in forbidden {
                assert!(!asset.text.contains(word), "{word} in {}", asset.path);
            }
            let foreign =
                asset.text.split("http").skip(1).filter(|rest| rest.starts_with("://") || rest.starts_with("s://"));
            for rest in foreign {
                assert!(rest.starts_with("://www.w3.org/"), "{} names http{}", asset.path, &rest[..20.min(rest.len())]);
            }
        }
    }

    /// What a node of a small test never tells, such as who of a team is waited for, is described as well.
    #[test]
    fn the_openapi_file_describes_every_field_of_a_report_with_all_its_parts() {
        let peer = || "a".to_owned();
        let wait = HelperWait { helper: peer(), seconds: 6.0 };
        let team = TeamReport {
            helpers: vec![peer()],
            waits: vec![wait.clone()],
            waits_for: Some(wait),
            ..TeamReport::default()
        };
        let report = NodeReport {
            copying: Some(CopyReport { share: 0.5, bytes: 1, donors: vec![peer()] }),
            scores: Some(murmur_training::Scores::default()),
            members: vec![MemberReport::default()],
            banned: vec![BannedPeer::default()],
            distrusted: vec![DistrustedPeer::default()],
            data: Some(DataReport::default()),
            synchronous: Some(SynchronousReport::default()),
            privacy: Some(PrivacyReport::default()),
            team: Some(team),
            ..NodeReport::default()
        };
        let file: Value = serde_json::from_str(OPENAPI.text).expect("JSON");
        let mut described = BTreeSet::new();
        let report = serde_json::to_value(&report).expect("JSON");
        compare(&file["components"]["schemas"], "NodeReport", &report, &mut described);
        for name in
            ["CopyReport", "DataReport", "HelperWait", "PrivacyReport", "Scores", "SynchronousReport", "TeamReport"]
        {
            assert!(described.contains(name), "{name} is not reached");
        }
    }

    /// The fields of an object are those of its schema, and no others; so are those of the objects in it.
    fn compare(schemas: &Value, name: &str, object: &Value, described: &mut BTreeSet<String>) {
        described.insert(name.to_owned());
        let known = schemas[name]["properties"].as_object().unwrap_or_else(|| panic!("there is no {name}"));
        let told = object.as_object().expect("an object");
        let names = |of: &serde_json::Map<String, Value>| of.keys().cloned().collect::<BTreeSet<String>>();
        assert_eq!(names(told), names(known), "{name}");
        for (field, schema) in known {
            let either = schema["oneOf"].as_array().into_iter().flatten();
            let schemas_named = either.chain([schema, &schema["items"]]).filter_map(|one| one["$ref"].as_str());
            for inner in schemas_named.map(|path| path.trim_start_matches("#/components/schemas/")) {
                let values = told[field].as_array().cloned().unwrap_or_else(|| vec![told[field].clone()]);
                values.iter().for_each(|value| compare(schemas, inner, value, described));
            }
        }
    }

    #[test]
    fn a_file_of_the_page_stays_short_enough_to_be_read() {
        for asset in ASSETS.iter().filter(|asset| asset.kind == SCRIPT) {
            let lines = asset.text.lines().count();
            assert!(lines <= 500, "{} has {lines} lines", asset.path);
            assert!(asset.text.starts_with("// "), "{} does not begin with its purpose", asset.path);
        }
    }
}
