//! The run: what its members have agreed on, what this machine's owner has set, and how others join.

use std::path::Path;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use qrcodegen::{QrCode, QrCodeEcc};
use serde::Serialize;
use serde_json::Value;

use super::Dashboard;
use crate::drivers::refuse;
use crate::remote::without_keys;
use crate::settings::{NodeSettings, declared};

/// In place of a secret.
const HIDDEN: &str = "…";

/// Light modules around a QR code, as its standard asks for.
const QUIET_ZONE: i32 = 4;

/// The answer of `/api/v1/run`.
#[derive(Serialize)]
struct RunAnswer {
    /// The run's id, in short.
    run: String,
    /// Whether only who has its secret may join.
    closed: bool,
    /// A section each.
    manifest: Value,
    /// A section each. Of a path only its last part is told, of a secret nothing: this page has no owner, and folders tell of one.
    settings: Value,
    /// The same where the owner has said nothing.
    defaults: Value,
}

/// The answer of `/api/v1/ticket`.
#[derive(Serialize)]
struct TicketAnswer {
    ticket: String,
    /// What others type.
    join: String,
    /// Whether it holds the secret of a closed run.
    closed: bool,
    /// The ticket as a QR code; none where it is too long for one.
    qr: Option<Qr>,
}

/// A QR code: dark modules as the path of an SVG, a module one unit wide.
#[derive(Serialize)]
struct Qr {
    /// Modules of a side, with the light ones around.
    size: i32,
    path: String,
}

pub(super) async fn run(State(dashboard): State<Dashboard>) -> Response {
    let about = &dashboard.about;
    let answer = RunAnswer {
        run: about.manifest.run_id().to_string(),
        closed: about.secret.is_some(),
        manifest: value(&about.manifest),
        settings: told(&about.settings),
        defaults: told(&NodeSettings::default()),
    };
    Json(answer).into_response()
}

/// A closed run's ticket lets others in, so only the owner gets it.
pub(super) async fn ticket(State(dashboard): State<Dashboard>, headers: HeaderMap) -> Response {
    if dashboard.about.secret.is_some() && !dashboard.token.is_in(&headers) {
        let hint = "send `Authorization: Bearer` with the token in daemon.json, in the daemon's data directory";
        return refuse(StatusCode::UNAUTHORIZED, "a closed run's ticket needs the daemon's token", hint);
    }
    let invitation = dashboard.invitations.borrow().clone();
    let Some(ticket) = invitation.ticket(dashboard.about.secret.clone()) else {
        return refuse(StatusCode::CONFLICT, "there is no ticket yet", "the daemon has no address; ask again later");
    };
    let ticket = ticket.to_string();
    let (qr, join) = (qr(&ticket), format!("murmur join {ticket}"));
    Json(TicketAnswer { qr, join, closed: dashboard.about.secret.is_some(), ticket }).into_response()
}

fn qr(text: &str) -> Option<Qr> {
    let code = QrCode::encode_text(text, QrCodeEcc::Low).ok()?;
    let mut path = String::new();
    for y in 0..code.size() {
        for x in (0..code.size()).filter(|x| code.get_module(*x, y)) {
            path.push_str(&format!("M{} {}h1v1h-1z", x + QUIET_ZONE, y + QUIET_ZONE));
        }
    }
    Some(Qr { size: code.size() + 2 * QUIET_ZONE, path })
}

fn value(settings: &impl Serialize) -> Value {
    serde_json::to_value(settings).expect("numbers, strings and lists of them")
}

/// What everybody is told of a node's settings: of a secret only that there is one.
fn told(settings: &NodeSettings) -> Value {
    let mut told = value(settings);
    for setting in declared().iter().filter(|setting| setting.is_secret()) {
        match told.pointer_mut(&format!("/{}", setting.key().replace('.', "/"))) {
            Some(Value::Array(secrets)) => secrets.fill(HIDDEN.into()),
            Some(Value::String(secret)) if secret.is_empty() => {}
            Some(secret) => *secret = HIDDEN.into(),
            None => {}
        }
    }
    for_everybody(told)
}

/// Paths as `…/name`, addresses without passwords, and of commands the program alone: whoever reaches the page sees these. What
/// begins with a slash and is no address of the network is a path.
fn for_everybody(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(without_folders(text)),
        Value::Array(items) => Value::Array(items.into_iter().map(for_everybody).collect()),
        Value::Object(fields) => {
            let field = |(name, value): (String, Value)| match value {
                Value::Array(words) if name.ends_with("_command") => {
                    let program = words.into_iter().take(1).map(for_everybody).collect();
                    (name, Value::Array(program))
                }
                value => (name, for_everybody(value)),
            };
            Value::Object(fields.into_iter().map(field).collect())
        }
        other => other,
    }
}

fn without_folders(text: String) -> String {
    if text.contains("://") {
        return without_keys(&text);
    }
    let is_address = ["/ip4/", "/ip6/", "/dns", "/p2p"].iter().any(|begin| text.starts_with(begin));
    if is_address || !Path::new(&text).is_absolute() {
        return text;
    }
    let name = Path::new(&text).file_name().map(|name| name.to_string_lossy().into_owned());
    format!("…/{}", name.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_name_no_folder_and_no_secret_of_their_owner() {
        let mut settings = NodeSettings::default();
        settings.data.files = vec!["/home/somebody/texts/book.txt".into()];
        settings.network.secret_file = "/home/somebody/secret".into();
        settings.network.bootstrap = vec!["/ip4/192.0.2.1/tcp/4711".to_owned()];
        settings.mlflow.url = "https://name:hunter2@mlflow.example/base".to_owned();
        settings.stay.notice_command =
            ["/usr/bin/curl", "-H", "Key: hunter2", "http://192.0.2.9/"].map(str::to_owned).into();
        let line = |secret: &str| format!("murmurlend1{secret}");
        settings.training.helpers = vec![line("hunter2"), line("hunter2too")];
        let told = told(&settings);
        assert_eq!(told.pointer("/training/helpers"), Some(&json!(["…", "…"])), "how many there are");
        let told = told.to_string();
        assert!(!told.contains("somebody") && !told.contains("hunter2"), "{told}");
        assert!(told.contains("https://mlflow.example/base") && told.contains("[\"…/curl\"]"), "{told}");
        assert!(told.contains("…/book.txt") && told.contains("/ip4/192.0.2.1/tcp/4711"), "{told}");
    }

    #[test]
    fn a_ticket_becomes_a_code_with_its_finder_patterns_and_a_light_border() {
        let code = qr("murmur1abcdef").expect("short enough");
        assert!(code.size >= 21 + 8);
        // The first row of the upper left finder pattern: seven dark modules and a light one.
        for x in 4..11 {
            assert!(code.path.contains(&format!("M{x} 4h1")), "{x}");
        }
        assert!(!code.path.contains("M11 4h1") && !code.path.contains("M3 4h1"));
        assert!(qr(&"x".repeat(5000)).is_none());
    }
}
