//! Requests to an MLflow tracking server: its REST API 2.0 (mlflow.org, "REST API"), and its proxy for artifacts.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ureq::http::{StatusCode, Uri};

use super::upload::Body;
use crate::remote::split_login;

/// A server that is there takes a connection at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A batch of 900 metrics takes a server with SQLite two seconds on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What a model may take to be stored, beside the time in which it is sent.
const UPLOAD_TIMEOUT_MIN: Duration = Duration::from_secs(3600);

/// A line, or a cap, that is slower sends no model.
const UPLOAD_BYTES_PER_SECOND_MIN: u64 = 50_000;

/// The longest answer that is read, in bytes: a run with its parameters and last metrics has a hundredth of that.
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// What is shown of a server's own words, in letters.
const WORDS_MAX: usize = 200;

/// An MLflow server.
#[derive(Debug)]
pub(super) struct Client {
    agent: ureq::Agent,
    /// Without a slash at its end.
    base: String,
    authorization: Option<String>,
    /// The address as it is shown and kept: without a password.
    pub(super) shown: String,
}

/// Who asks: `MLFLOW_TRACKING_USERNAME` and `_PASSWORD`, or `_TOKEN`, as MLflow's own clients read them.
#[derive(Clone, Debug, Default)]
pub(super) struct Credentials {
    /// A name and a password.
    pub(super) login: Option<(String, String)>,
    /// A token, which is used where there is no name.
    pub(super) token: Option<String>,
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Trouble {
    /// Nobody is there, or says nothing in time.
    #[error("does not answer: {0}")]
    Silent(String),
    /// The server took too long over this request, which it may have carried out.
    #[error("takes longer than {} s", ANSWER_TIMEOUT.as_secs())]
    Slow,
    /// Something else than an MLflow server.
    #[error("is no MLflow: {0}")]
    NoMlflow(String),
    /// A name, a password or a right is missing.
    #[error("refuses access: {0}")]
    Denied(String),
    /// The server has trouble of its own.
    #[error("has trouble of its own: {0}")]
    Busy(String),
    /// It does not take what was sent.
    #[error("does not take it: {0}")]
    Refused(String),
    /// The run or the experiment was deleted.
    #[error("has it no more: {0}")]
    Gone(String),
    /// The journal cannot be read.
    #[error("cannot be told: the journal cannot be read: {0}")]
    Journal(String),
}

impl Credentials {
    /// Those of the environment.
    pub(super) fn from_environment() -> Credentials {
        let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let login =
            of("MLFLOW_TRACKING_USERNAME").map(|name| (name, of("MLFLOW_TRACKING_PASSWORD").unwrap_or_default()));
        Credentials { login, token: of("MLFLOW_TRACKING_TOKEN") }
    }

    fn header(&self) -> Option<String> {
        let basic =
            |(name, password): &(String, String)| format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
        let token = || self.token.as_ref().map(|token| format!("Bearer {token}"));
        self.login.as_ref().map(basic).or_else(token)
    }
}

impl Client {
    /// A client for a server's address, such as `http://127.0.0.1:5000`; `None` where that is no address. A name and a password
    /// in the address are used, too.
    pub(super) fn new(url: &str, credentials: &Credentials) -> Option<Client> {
        let (base, login) = split_login(url.trim().trim_end_matches('/'));
        let uri: Uri = base.parse().ok()?;
        let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"))?;
        let host = uri.host().filter(|host| !host.is_empty())?;
        let authority = uri.authority()?.as_str();
        if uri.query().is_some() || base.contains('#') {
            return None;
        }
        let shown = format!("{scheme}://{authority}{}", uri.path().trim_end_matches('/'));
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(ANSWER_TIMEOUT))
            // A redirected POST would become a GET.
            .max_redirects(0)
            .max_redirects_will_error(false);
        let is_here = host == "localhost"
            || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        if is_here {
            config = config.proxy(None);
        }
        let authorization = credentials.header().or(login);
        Some(Client { agent: config.build().new_agent(), base, authorization, shown })
    }

    /// Asks for something of the API, with parameters of a query.
    ///
    /// # Errors
    /// What keeps it from an answer.
    pub(super) fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Trouble> {
        let mut request = self.agent.get(format!("{}/api/2.0/mlflow/{path}", self.base));
        for (name, value) in query {
            request = request.query(*name, *value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        answer(request.call())
    }

    /// Has something of the API changed. The body is not compressed: servers answer 500 to that.
    ///
    /// # Errors
    /// What keeps it from an answer.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        let mut request = self.agent.post(format!("{}/api/2.0/mlflow/{path}", self.base));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        answer(request.send_json(body))
    }

    /// Sends a file, which is at its beginning, to the server's artifact proxy. `place` is what stands behind `mlflow-artifacts:/` in
    /// the run's address of artifacts, and the file's name.
    ///
    /// # Errors
    /// What keeps it from being there.
    pub(super) fn upload(&self, place: &str, mut body: Body<'_>) -> Result<(), Trouble> {
        let bytes = body.file.metadata().map_err(|error| Trouble::Refused(error.to_string()))?.len();
        let mut request = self
            .agent
            .put(format!("{}/api/2.0/mlflow-artifacts/artifacts/{place}", self.base))
            .config()
            .timeout_global(Some(UPLOAD_TIMEOUT_MIN + Duration::from_secs(bytes / UPLOAD_BYTES_PER_SECOND_MIN)))
            .build()
            .header("Content-Length", bytes)
            .header("Content-Type", "application/octet-stream");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        // What it says of a file that it has taken is empty, or an empty object in older versions.
        words(request.send(ureq::SendBody::from_reader(&mut body))).map(drop)
    }
}

/// What a server has said: an object.
fn answer(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, Trouble> {
    let parsed = serde_json::from_str(&words(answer)?).ok().filter(Value::is_object);
    parsed.ok_or_else(|| Trouble::NoMlflow("its answer is no JSON".to_owned()))
}

/// The text of an answer that says that all went well.
fn words(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<String, Trouble> {
    let mut answer = answer.map_err(failure)?;
    let status = answer.status();
    let leads_to = answer.headers().get("location").and_then(|place| place.to_str().ok()).map(str::to_owned);
    let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string().map_err(failure)?;
    if status.is_success() {
        return Ok(text);
    }
    let parsed: Option<Value> = serde_json::from_str(&text).ok().filter(Value::is_object);
    // MLflow says what is wrong in these two fields.
    let code = parsed.as_ref().and_then(|said| said["error_code"].as_str()).unwrap_or_default();
    let message = parsed.as_ref().and_then(|said| said["message"].as_str()).unwrap_or(&text);
    let words: String = message.lines().next().unwrap_or_default().chars().take(WORDS_MAX).collect();
    let said =
        if words.is_empty() || words.starts_with('<') { status.to_string() } else { format!("{status}: {words}") };
    Err(match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Trouble::Denied(said),
        StatusCode::TOO_MANY_REQUESTS => Trouble::Busy(said),
        status if status.is_server_error() => Trouble::Busy(said),
        StatusCode::NOT_FOUND if code == "RESOURCE_DOES_NOT_EXIST" => Trouble::Gone(words),
        status if status.is_redirection() => Trouble::NoMlflow(format!("it leads to {}", leads_to.unwrap_or(said))),
        _ if code.is_empty() => Trouble::NoMlflow(format!("it answers {status}")),
        _ => Trouble::Refused(words),
    })
}

fn failure(error: ureq::Error) -> Trouble {
    match error {
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            Trouble::Silent("nobody is there".to_owned())
        }
        ureq::Error::Timeout(_) => Trouble::Slow,
        ureq::Error::Protocol(error) => Trouble::NoMlflow(error.to_string()),
        error => Trouble::Silent(error.to_string()),
    }
}

impl Trouble {
    /// What to do about it.
    pub(super) fn hint(&self) -> &'static str {
        match self {
            Trouble::Silent(_) | Trouble::Slow | Trouble::Busy(_) => {
                "is the address right, and does the server run? the journal keeps what is told, and it is sent later"
            }
            Trouble::NoMlflow(_) => "--mlflow takes the address of a tracking server, such as http://127.0.0.1:5000",
            Trouble::Denied(_) => {
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN; a server on another \
                 machine also needs to be started with --allowed-hosts"
            }
            Trouble::Refused(_) => "the server's own log says more",
            Trouble::Gone(_) => {
                "restore the run in MLflow and restart this node, or delete mlflow.json in its data directory to begin \
                 another one"
            }
            Trouble::Journal(_) => "`murmur doctor --data-dir FOLDER` looks at the disk",
        }
    }
}

/// A batch for `runs/log-batch`.
pub(super) fn batch(run_id: &str, metrics: &[Value], params: &[(String, String)], tags: &[(String, String)]) -> Value {
    let pairs = |pairs: &[(String, String)]| -> Vec<Value> {
        pairs.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect()
    };
    json!({ "run_id": run_id, "metrics": metrics, "params": pairs(params), "tags": pairs(tags) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_a_password() {
        let shown = |url: &str| Client::new(url, &Credentials::default()).map(|client| client.shown);
        for (url, expected) in [
            ("http://127.0.0.1:5000/", "http://127.0.0.1:5000"),
            (" https://name:secret@ml.example/base/ ", "https://ml.example/base"),
            ("http://[::1]:5000", "http://[::1]:5000"),
        ] {
            assert_eq!(shown(url).as_deref(), Some(expected));
        }
        for url in
            ["", "127.0.0.1:5000", "htp://a", "http://", "http:/a", "http://a b", "http://a/?x=1", "http://a#b", "x"]
        {
            assert_eq!(shown(url), None, "{url:?}");
        }
    }

    #[test]
    fn a_password_in_the_address_is_decoded_and_gives_way_to_that_of_the_environment() {
        let client = |credentials: &Credentials| Client::new("https://me:a%2Fb@ml.example/base", credentials);
        let without = client(&Credentials::default()).expect("an address");
        // Base64 of `me:a/b`.
        assert_eq!(without.authorization.as_deref(), Some("Basic bWU6YS9i"));
        assert_eq!(without.base, "https://ml.example/base");
        let token = Credentials { login: None, token: Some("t".into()) };
        assert_eq!(client(&token).expect("an address").authorization.as_deref(), Some("Bearer t"));
    }

    #[test]
    fn a_name_comes_before_a_token() {
        let both = Credentials { login: Some(("Aladdin".into(), "open sesame".into())), token: Some("t".into()) };
        // The example of RFC 7617.
        assert_eq!(both.header().as_deref(), Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
        assert_eq!(Credentials { login: None, ..both }.header().as_deref(), Some("Bearer t"));
        assert_eq!(Credentials::default().header(), None);
    }
}
