//! What `export --redact` takes for a secret: key shapes that are well known, what stands behind a telling name, and what the
//! user adds.
//!
//! A text that is taken for a secret and is none costs a reader little; the other way round it costs more. All patterns are
//! matched in time linear in the text.

use anyhow::Context as _;
use regex::{Regex, RegexSet};
use sessionlog::export::{Redactor, Secret};

/// Text before a key: not in the middle of a word.
macro_rules! key {
    ($shape:literal) => {
        concat!("(?:^|[^A-Za-z0-9])(?<secret>", $shape, ")")
    };
}

/// Behind one of these names, and an equals sign or a colon, stands a secret.
macro_rules! named {
    ($value:literal) => {
        concat!(
            r#"(?i)(?:passw(?:or)?d|passphrase|pwd|secret|credential|(?:api|access|account|auth|encryption|private|signing)[_-]?key"#,
            r#"|(?:access|api|auth|bearer|refresh|session)[_-]?token)[a-z0-9_.-]*["']?[ \t]*(?::=|=>|[:=])[ \t]*"#,
            $value
        )
    };
}

/// Name, shape. Where a shape has a group `secret`, that is the secret.
const BUILT_IN: [(&str, &str); 20] = [
    (
        "private-key",
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|\z)",
    ),
    ("sk-key", key!(r"sk-[A-Za-z0-9_-]{16,}")),
    ("stripe", key!(r"(?:[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{16,})")),
    ("github", key!(r"(?:gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})")),
    ("gitlab", key!(r"glpat-[A-Za-z0-9_-]{20,}")),
    ("aws", key!(r"(?:A3T[A-Z0-9]|AKIA|ASIA)[A-Z0-9]{16}")),
    ("google", key!(r"(?:AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,})")),
    ("slack", key!(r"(?:xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,})")),
    ("slack", r"hooks\.slack\.com/(?:services|workflows)/(?<secret>[A-Za-z0-9_/-]{8,})"),
    ("package-registry", key!(r"(?:npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{32,})")),
    ("hugging-face", key!(r"hf_[A-Za-z0-9]{30,}")),
    ("jwt", key!(r"eyJ[A-Za-z0-9_-]{6,}\.eyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*)?")),
    ("authorization", r#"(?i)\bbearer[ \t]+(?<secret>[a-z0-9._~+/=-]{12,})"#),
    (
        "authorization",
        r#"(?i)authorization["']?[ \t]*[:=][ \t]*["']?(?:[a-z-]+[ \t]+)?(?<secret>[^\s"',;\\\[]{8,})"#,
    ),
    (
        "connection-string",
        r#"(?i)\b[a-z][a-z0-9+.-]*://[^\s:/?#@"'\\]*:(?<secret>[^\s/@"'\\\[][^\s/@"'\\]*)@"#,
    ),
    ("connection-string", r#"(?i)\b(?:AccountKey|SharedAccessKey|sig)=(?<secret>[A-Za-z0-9+/=%]{16,})"#),
    ("named", named!(r#""(?<secret>[^"\\\r\n\[][^"\\\r\n]*)"#)),
    ("named", named!(r#"'(?<secret>[^'\\\r\n\[][^'\\\r\n]*)"#)),
    ("named", named!(r#"(?<secret>[^\s"'`,;&|$<>(){}\[\]*%\\][^\s"'`,;&|<>(){}\[\]\\]{3,})"#)),
    (
        "named",
        r#"(?i)--?(?:password|passwd|token|api-?key|secret)[ \t]+["']?(?<secret>[^\s"'`$<>(){}\[\]\\-][^\s"'`\\]{3,})"#,
    ),
];

/// Name under which the value of a telling key counts.
const BY_KEY: &str = "named";
/// A member whose key ends so has a secret for its value.
const TELLING_KEY: &str = r"(?i)(?:passw(?:or)?d|passphrase|pwd|secret|authorization|(?:api|access|account|auth|encryption|private|signing|secret)[_-]?key|(?:access|api|auth|bearer|refresh|session)[_-]?token)$";

/// The patterns of one export.
pub(crate) struct Patterns {
    names: Vec<String>,
    shapes: Vec<Regex>,
    /// All of them at once: most texts hold none.
    any: RegexSet,
    /// Which key tells of a secret, if the built-in patterns count.
    telling_key: Option<Regex>,
}

impl Patterns {
    /// The built-in patterns, if they are wanted, and `added` ones.
    ///
    /// # Errors
    ///
    /// An added pattern that is no regular expression, or one that matches the empty text.
    pub(crate) fn new(built_in: bool, added: &[String]) -> anyhow::Result<Self> {
        let (mut names, mut shapes) = (Vec::new(), Vec::new());
        for (name, shape) in BUILT_IN.iter().filter(|_| built_in) {
            names.push((*name).to_owned());
            shapes.push(Regex::new(shape).context("a built-in pattern")?);
        }
        for pattern in added {
            names.push(pattern.clone());
            shapes.push(added_shape(pattern)?);
        }
        let any = RegexSet::new(shapes.iter().map(Regex::as_str)).context("the patterns together")?;
        let telling_key = built_in.then(|| Regex::new(TELLING_KEY)).transpose()?;
        Ok(Self { names, shapes, any, telling_key })
    }

    /// What is secret in a text that is the value of a member with this key, if of any.
    pub(crate) fn find(&self, key: Option<&str>, text: &str) -> Vec<Secret> {
        let mut found = Vec::new();
        if let (Some(key), Some(telling)) = (key, &self.telling_key)
            && !text.is_empty()
            && telling.is_match(key)
        {
            let by_key = self.names.iter().position(|name| name == BY_KEY).unwrap_or(0);
            found.push(Secret { range: 0..text.len(), pattern: by_key });
        }
        for pattern in self.any.matches(text) {
            let captures = self.shapes[pattern].captures_iter(text);
            let secrets = captures.filter_map(|c| c.name("secret").or_else(|| c.get(0)));
            found.extend(secrets.map(|m| Secret { range: m.range(), pattern }));
        }
        found
    }

    /// How many secrets there were by the name of the pattern, none where there was none.
    pub(crate) fn counts(&self, redactor: &Redactor<'_>) -> Vec<(&str, u64)> {
        let mut counts: Vec<(&str, u64)> = Vec::new();
        for (&pattern, &count) in redactor.counts() {
            let name = self.names.get(pattern).map_or("", String::as_str);
            match counts.iter_mut().find(|(known, _)| *known == name) {
                Some((_, total)) => *total += count,
                None => counts.push((name, count)),
            }
        }
        counts
    }
}

fn added_shape(pattern: &str) -> anyhow::Result<Regex> {
    let refused = |why: String| crate::exit::Usage(format!("export: --redact-pattern {pattern}: {why}"));
    let shape = Regex::new(pattern).map_err(|error| refused(error.to_string()))?;
    if shape.is_match("") {
        return Err(refused("it matches the empty text, and so every text".into()).into());
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(key: Option<&str>, text: &str) -> Vec<String> {
        let patterns = Patterns::new(true, &[]).unwrap();
        let mut found: Vec<_> =
            patterns.find(key, text).into_iter().map(|s| text[s.range].to_owned()).collect();
        found.sort();
        found.dedup();
        found
    }

    #[test]
    fn well_known_shapes_are_found_and_nothing_around_them() {
        let long = "0123456789abcdefABCDEF0123456789abcdefgh";
        let keys = [
            format!("sk-ant-api03-{long}"),
            format!("sk-proj-{long}"),
            format!("sk_live_{long}"),
            format!("ghp_{long}"),
            format!("github_pat_{long}_{long}"),
            format!("glpat-{long}"),
            "AKIAIOSFODNN7EXAMPLE".to_owned(),
            format!("AIza{}", &long[..35]),
            format!("xoxb-1234567890-{long}"),
            format!("npm_{}", &long[..36]),
            format!("hf_{long}"),
            format!("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{long}"),
            format!("-----BEGIN RSA PRIVATE KEY-----\nMIIE{long}\n-----END RSA PRIVATE KEY-----"),
        ];
        for key in keys {
            assert_eq!(found(None, &format!("see {key}, it works")), [&*key], "{key}");
            assert_eq!(found(None, &format!("KEY_{key}")), [&*key], "{key}");
        }
        let cut = "-----BEGIN PRIVATE KEY-----\nMIIEabc";
        assert_eq!(found(None, &format!("x {cut}")), [cut]);
    }

    #[test]
    fn what_a_name_announces_is_found() {
        for (text, secret) in [
            ("password=hunter2 next", "hunter2"),
            ("DB_PASSWORD: 'correct horse'", "correct horse"),
            (r#"{"password" : "correct horse","x":1}"#, "correct horse"),
            ("export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
            ("client_secret=abcd1234&grant=x", "abcd1234"),
            ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
            ("authorization: Bearer FAKEFAKEFAKEFAKE", "FAKEFAKEFAKEFAKE"),
            ("curl -H 'X: y' bearer abcdefghijklmnop", "abcdefghijklmnop"),
            ("postgres://app:s3cr3t@db/prod", "s3cr3t"),
            ("mysql --password hunter22 -h db", "hunter22"),
            ("https://hooks.slack.com/services/T000/B000/XXXX", "T000/B000/XXXX"),
        ] {
            assert_eq!(found(None, text), [secret], "{text}");
        }
        assert_eq!(found(Some("apiKey"), "anything"), ["anything"]);
        assert_eq!(found(Some("db_password"), "x y"), ["x y"]);
        assert_eq!(found(Some("keyboard"), "x y"), Vec::<String>::new());
    }

    #[test]
    fn prose_and_tags_are_left_alone() {
        for text in [
            "the password is in the vault",
            "maxTokens: 4096 tokens, inputTokens=100",
            "task-based risk-assessment-for-the-desk",
            "http://localhost:8080/a@b see user@example.com",
            "password=[redacted:1] and \"secret\": \"[redacted:22]\"",
            "password=$DB_PASSWORD",
            "The bearer of this letter",
        ] {
            assert_eq!(found(None, text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn added_patterns_must_be_sound() {
        assert!(Patterns::new(false, &["[".into()]).is_err());
        assert!(Patterns::new(false, &["a*".into()]).is_err());
        let patterns = Patterns::new(false, &["proj-(?<secret>[0-9]+)".into()]).unwrap();
        assert_eq!(patterns.find(Some("password"), "proj-77"), [Secret { range: 5..7, pattern: 0 }]);
    }
}
