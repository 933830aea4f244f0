//! Whose requests to a store are, and where it is: the environment first, then the files in `~/.aws`, as Amazon's own tools
//! read them. Nothing here is ever printed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// A key pair.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(super) access_key: String,
    pub(super) secret_key: String,
    /// Of a session that ends by itself.
    pub(super) token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials")
    }
}

/// What the owner has set up for stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(super) credentials: Option<Credentials>,
    pub(super) region: Option<String>,
    /// Another store than Amazon's, without a slash at its end.
    pub(super) endpoint: Option<String>,
    /// The profile that was asked for by name.
    pub(super) profile: Option<String>,
}

type Section = BTreeMap<String, String>;

impl Setup {
    /// Reads the environment and the files.
    pub(crate) fn read() -> Setup {
        let of = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let home = of("HOME").or_else(|| of("USERPROFILE")).map(PathBuf::from).unwrap_or_default();
        let file = |name: &str, usual: &str| {
            let path = of(name).map_or_else(|| home.join(".aws").join(usual), PathBuf::from);
            std::fs::read_to_string(path).unwrap_or_default()
        };
        Setup::of(&of, &file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), &file("AWS_CONFIG_FILE", "config"))
    }

    /// The same from given texts; `of` looks up a variable.
    fn of(of: &dyn Fn(&str) -> Option<String>, credentials: &str, config: &str) -> Setup {
        let profile = of("AWS_PROFILE").or_else(|| of("AWS_DEFAULT_PROFILE"));
        let name = profile.as_deref().unwrap_or("default");
        let kept = section(credentials, &[name]);
        let settings = section(config, &[&format!("profile {name}"), name]);
        let pair = |look: &dyn Fn(&str) -> Option<String>, names: [&str; 3]| {
            let [access_key, secret_key, token] = names.map(look);
            Some(Credentials { access_key: access_key?, secret_key: secret_key?, token })
        };
        let file_names = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
        let in_file = |section: &Section| pair(&|name: &str| section.get(name).cloned(), file_names);
        let in_environment = || pair(of, ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]);
        let endpoint = of("AWS_ENDPOINT_URL_S3")
            .or_else(|| of("AWS_ENDPOINT_URL"))
            .or_else(|| settings.get("endpoint_url").cloned());
        Setup {
            credentials: in_environment().or_else(|| in_file(&kept)).or_else(|| in_file(&settings)),
            region: of("AWS_REGION").or_else(|| of("AWS_DEFAULT_REGION")).or_else(|| settings.get("region").cloned()),
            endpoint: endpoint.map(|endpoint| endpoint.trim().trim_end_matches('/').to_owned()),
            profile,
        }
    }
}

/// The settings of the first section in a file that has one of these names.
fn section(text: &str, names: &[&str]) -> Section {
    let mut found = Section::new();
    let mut is_in = false;
    for line in text.lines() {
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            is_in = names.contains(&header.trim());
        } else if let Some((name, value)) =
            line.split_once('=').filter(|_| is_in && !is_nested && !line.starts_with(['#', ';']))
        {
            let value = value.trim().trim_matches('"').to_owned();
            found.entry(name.trim().to_ascii_lowercase()).or_insert(value);
        }
    }
    found
}

/// Whether a file of keys is there at all, for a hint.
pub(super) fn has_files() -> bool {
    let home = std::env::var_os("HOME").unwrap_or_default();
    Path::new(&home).join(".aws").is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: &str = "# mine\n[default]\naws_access_key_id = A1\naws_secret_access_key=S1\n\n[work]\n\
        aws_access_key_id = A2\naws_secret_access_key = S2=\naws_session_token = T2\n";
    const CONFIG: &str = "[default]\nregion = eu-central-1\ns3 =\n  endpoint_url = http://nested\n[profile work]\nregion = \
        us-west-2\nendpoint_url = https://minio.example:9000/\n";

    fn setup(variables: &[(&str, &str)]) -> Setup {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Setup::of(&find, KEPT, CONFIG)
    }

    #[test]
    fn the_environment_comes_before_a_profile_and_a_profile_before_the_default() {
        let usual = setup(&[]);
        let keys = |setup: &Setup| setup.credentials.clone().map(|it| (it.access_key, it.secret_key, it.token));
        assert_eq!(keys(&usual), Some(("A1".into(), "S1".into(), None)));
        assert_eq!((usual.region.as_deref(), usual.endpoint.as_deref()), (Some("eu-central-1"), None));
        let work = setup(&[("AWS_PROFILE", "work")]);
        assert_eq!(keys(&work), Some(("A2".into(), "S2=".into(), Some("T2".into()))));
        assert_eq!(work.region.as_deref(), Some("us-west-2"));
        assert_eq!(work.endpoint.as_deref(), Some("https://minio.example:9000"));
        let given = [("AWS_ACCESS_KEY_ID", "A3"), ("AWS_SECRET_ACCESS_KEY", "S3"), ("AWS_REGION", "x")];
        assert_eq!(keys(&setup(&given)), Some(("A3".into(), "S3".into(), None)));
        assert_eq!(setup(&[("AWS_PROFILE", "nobody")]).credentials, None);
        assert_eq!(format!("{:?}", usual.credentials), "Some(Credentials)", "no key is ever shown");
    }
}
