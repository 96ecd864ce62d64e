//! Request headers: their shape, the canonical form, and when two are equal (spec sections 4.2, 6, 20 and 21).
//!
//! Each `request/header` event carries a full header; the one in force is the latest. Text is never rewritten: the
//! canonical form keeps the members of the header as they are spelled and drops those that mean nothing.

use std::fmt;

use super::json::{Digest, Digester, Value, equal, ordered_equal};
use super::model::Origin;
use super::verdict::{Refusal, RefusalKind, WarningKind};

/// Why a header was logged (spec section 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeaderReason {
    /// The first header of a log.
    Initial,
    /// The first header of another run of the agent loop over the log.
    Resume,
    /// The header differs from the one in force.
    Change,
    /// The header is unchanged and the messages start a new series.
    Series,
}

impl HeaderReason {
    /// The word in the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Resume => "resume",
            Self::Change => "change",
            Self::Series => "series",
        }
    }

    /// The reason that a `reason` member spells.
    #[must_use]
    pub fn of(value: Value<'_>) -> Option<Self> {
        [Self::Initial, Self::Resume, Self::Change, Self::Series]
            .into_iter()
            .find(|r| value.is_str(r.as_str()))
    }
}

impl fmt::Display for HeaderReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A request header in canonical form: `{"config", "adapterDefaults"?, "system"?, "tools"?}`.
///
/// Equality is that of the producer's rule (spec sections 6 and 21), not of texts.
#[derive(Debug, Clone)]
pub struct CanonicalHeader {
    text: String,
    digest: Digest,
}

impl CanonicalHeader {
    /// Canonical form of a header object that a `request/header` event carries or a host is about to log. Empty
    /// `adapterDefaults`, `system` and `tools` and all foreign members are dropped. `None` without a config object.
    #[must_use]
    pub fn new(header: Value<'_>) -> Option<Self> {
        let [config, defaults, system, tools] =
            header.get_all(["config", "adapterDefaults", "system", "tools"]);
        let config = config.filter(Value::is_object)?;
        let defaults = defaults.filter(|d| d.members().any(|m| m.value.is_true()));
        let system = system.filter(Value::is_non_empty_string);
        let tools = tools.filter(|t| t.elements().next().is_some() || t.is_non_empty_string());
        // Canonical, a header is no longer than it came, and mostly as long.
        let mut text = String::with_capacity(header.raw().len());
        text.push_str("{\"config\":");
        text.push_str(config.raw());
        for (key, member) in
            [(",\"adapterDefaults\":", defaults), (",\"system\":", system), (",\"tools\":", tools)]
        {
            if let Some(member) = member {
                text.push_str(key);
                text.push_str(member.raw());
            }
        }
        text.push('}');
        text.shrink_to_fit();
        let digest = Parts::of(Value::new(&text)).digest();
        Some(Self { text, digest })
    }

    /// Canonical form of the header in the data of an admitted `request/header` event.
    #[must_use]
    pub fn from_data(data: Value<'_>) -> Option<Self> {
        Self::new(data.get("header")?)
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The header, to walk in place.
    #[must_use]
    pub fn value(&self) -> Value<'_> {
        Value::new(&self.text)
    }

    /// Fingerprint that equal headers share; stable over releases and machines.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Names of the parts that the header has.
    #[must_use]
    pub fn part_names(&self) -> Vec<&'static str> {
        let [config, system, tools] = self.value().get_all(["config", "system", "tools"]);
        let parts = [("config", config), ("system", system), ("tools", tools)];
        parts.into_iter().filter(|(_, part)| part.is_some()).map(|(name, _)| name).collect()
    }

    /// Names of the parts in which the two differ: `config` (with the adapter's defaults), `system`, `tools`.
    #[must_use]
    pub fn changed_since(&self, earlier: &Self) -> Vec<&'static str> {
        if self.text == earlier.text {
            return Vec::new();
        }
        let (new, old) = (Parts::of(self.value()), Parts::of(earlier.value()));
        let equals = [
            ("config", new.same_config(&old)),
            ("system", new.same_system(&old)),
            ("tools", new.same_tools(&old)),
        ];
        equals.into_iter().filter(|(_, equal)| !equal).map(|(name, _)| name).collect()
    }
}

impl PartialEq for CanonicalHeader {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest && self.changed_since(other).is_empty()
    }
}

impl Eq for CanonicalHeader {}

/// The members of a canonical header that count for equality. Members of the config beyond these six are kept and
/// do not count; key order counts in tools alone.
struct Parts<'a> {
    config: [Option<Value<'a>>; 6],
    defaults: [bool; 2],
    system: Option<Value<'a>>,
    tools: Option<Value<'a>>,
}

impl<'a> Parts<'a> {
    fn of(header: Value<'a>) -> Self {
        let [config, defaults, system, tools] =
            header.get_all(["config", "adapterDefaults", "system", "tools"]);
        let config = config.map_or([None; 6], |config| {
            config.get_all(["provider", "model", "reasoningEffort", "temperature", "maxTokens", "stop"])
        });
        let marks = defaults.map_or([None; 2], |defaults| defaults.get_all(["reasoningEffort", "maxTokens"]));
        Self { config, defaults: marks.map(|mark| mark.is_some_and(|mark| mark.is_true())), system, tools }
    }

    fn same_config(&self, other: &Self) -> bool {
        let same = |(a, b): (&Option<_>, &Option<_>)| same_value(*a, *b);
        self.defaults == other.defaults && self.config.iter().zip(&other.config).all(same)
    }

    fn same_system(&self, other: &Self) -> bool {
        same_value(self.system, other.system)
    }

    fn same_tools(&self, other: &Self) -> bool {
        match (self.tools, other.tools) {
            (Some(a), Some(b)) => ordered_equal(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    fn digest(&self) -> Digest {
        let mut digester = Digester::default();
        for member in self.config.iter().chain([&self.system]) {
            match member {
                Some(value) => {
                    digester.bytes(b"+");
                    digester.value(*value);
                }
                None => digester.bytes(b""),
            }
        }
        digester.bytes(&self.defaults.map(u8::from));
        if let Some(tools) = self.tools {
            digester.ordered_value(tools);
        }
        digester.finish()
    }
}

fn same_value(a: Option<Value<'_>>, b: Option<Value<'_>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => equal(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// The data of a `request/header`: `{header, reason, startsSeries?}`. Returns what an import lets pass.
pub(super) fn check(data: Value<'_>, origin: Origin) -> Result<Option<WarningKind>, Refusal> {
    let [header, reason, starts_series] = data.get_all(["header", "reason", "startsSeries"]);
    check_header(header)?;
    let known = reason.and_then(HeaderReason::of);
    check_starts_series(starts_series, known)?;
    match (known, origin) {
        (Some(_), _) => Ok(None),
        (None, Origin::Import | Origin::Load) => Ok(Some(WarningKind::UnknownHeaderReason)),
        (None, Origin::Append | Origin::Seed) => Err(Refusal::new(
            RefusalKind::HeaderReason,
            "header-reason",
            "the reason of a request/header must be initial, resume, change or series",
        )),
    }
}

/// `startsSeries` is `true` or absent, and stands beside reason `change` alone (spec section 6).
fn check_starts_series(mark: Option<Value<'_>>, reason: Option<HeaderReason>) -> Result<(), Refusal> {
    match mark {
        None => Ok(()),
        Some(mark) if mark.is_true() && reason == Some(HeaderReason::Change) => Ok(()),
        Some(_) => {
            Err(refuse("starts-series", "startsSeries must be true and belongs to reason change alone"))
        }
    }
}

/// The header: provider and model, a reasoning effort that is not empty, adapter defaults that mark existing members
/// of the config (spec section 4.2); `system` a string, and `tools` an array or the string that scrubbed logs have in
/// its place (section 20).
fn check_header(header: Option<Value<'_>>) -> Result<(), Refusal> {
    let header = header
        .filter(Value::is_object)
        .ok_or_else(|| refuse("header-object", "a request/header needs a header object"))?;
    let [config, defaults, system, tools] = header.get_all(["config", "adapterDefaults", "system", "tools"]);
    let config = config
        .filter(Value::is_object)
        .ok_or_else(|| refuse("header-config", "a request header needs a config object"))?;
    let [provider, model, effort] = config.get_all(["provider", "model", "reasoningEffort"]);
    let named = |value: Option<Value<'_>>| value.is_some_and(|v| v.is_non_empty_string());
    if !(named(provider) && named(model)) {
        return Err(refuse("header-route", "a request header needs a provider and a model"));
    }
    if effort.is_some_and(|effort| !effort.is_non_empty_string()) {
        return Err(refuse("header-effort", "reasoningEffort must be a non-empty string or absent"));
    }
    if let Some(defaults) = defaults {
        check_defaults(defaults, config)?;
    }
    if system.is_some_and(|system| !system.is_string()) {
        return Err(refuse("header-system", "system must be a string or absent"));
    }
    if tools.is_some_and(|tools| !tools.is_array() && !tools.is_string()) {
        return Err(refuse("header-tools", "tools must be an array or absent"));
    }
    Ok(())
}

fn check_defaults(defaults: Value<'_>, config: Value<'_>) -> Result<(), Refusal> {
    let marks_config = |key| match defaults.get(key) {
        None => true,
        Some(mark) => mark.is_true() && config.get(key).is_some(),
    };
    if defaults.has_only(&["reasoningEffort", "maxTokens"])
        && marks_config("reasoningEffort")
        && marks_config("maxTokens")
    {
        return Ok(());
    }
    Err(refuse(
        "header-defaults",
        "adapterDefaults must mark reasoningEffort or maxTokens of the config with true",
    ))
}

fn refuse(rule: &'static str, message: &str) -> Refusal {
    Refusal::new(RefusalKind::HeaderShape, rule, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"provider":"p","model":"m","maxTokens":5}"#;

    fn header(members: &str) -> CanonicalHeader {
        CanonicalHeader::new(Value::new(&format!(r#"{{"config":{CONFIG}{members}}}"#))).unwrap()
    }

    fn rule(data: &str, origin: Origin) -> &'static str {
        check(Value::new(data), origin).map_or_else(|refusal| refusal.rule, |_| "")
    }

    #[test]
    fn the_canonical_form_drops_what_means_nothing() {
        let full = header(
            r#","messagePrefix":[1],"tools":[{"n":1.0}],"system":"s\u0061","adapterDefaults":{"maxTokens":true}"#,
        );
        assert_eq!(
            full.text(),
            format!(
                r#"{{"config":{CONFIG},"adapterDefaults":{{"maxTokens":true}},"system":"s\u0061","tools":[{{"n":1.0}}]}}"#
            )
        );
        let bare = format!(r#"{{"config":{CONFIG}}}"#);
        assert_eq!(header(r#","tools":[],"system":"","adapterDefaults":{}"#).text(), bare);
        assert_eq!(
            header(r#","tools":"{{tools}}""#).text(),
            format!(r#"{{"config":{CONFIG},"tools":"{{{{tools}}}}"}}"#)
        );
        assert!(CanonicalHeader::from_data(Value::new("null")).is_none());
    }

    #[test]
    fn equality_is_the_producers() {
        let same = [
            (r#","system":"a""#, r#","system":"\u0061""#),
            (r#","tools":[{"b":1,"2":-0}]"#, r#","tools":[{"2":0,"b":1.0}]"#),
            (r#","tools":[]"#, ""),
            (r#","extra":1"#, ""),
        ];
        for (a, b) in same {
            assert_eq!(header(a), header(b), "{a} {b}");
            assert_eq!(header(a).digest(), header(b).digest());
        }
        let different = [
            (r#","system":"a""#, "", "system"),
            (r#","tools":[{"a":1,"b":1}]"#, r#","tools":[{"b":1,"a":1}]"#, "tools"),
            (r#","tools":[1,2]"#, r#","tools":[2,1]"#, "tools"),
            (r#","adapterDefaults":{"maxTokens":true}"#, "", "config"),
            (r#","config":{"provider":"p","model":"m","maxTokens":5,"stop":[]}"#, "", "config"),
            (r#","config":{"provider":"p","model":"m","maxTokens":6}"#, "", "config"),
        ];
        for (a, b, part) in different {
            assert_ne!(header(a), header(b), "{a} {b}");
            assert_eq!(header(a).changed_since(&header(b)), [part], "{a} {b}");
            assert_ne!(header(a).digest(), header(b).digest());
        }
        assert_eq!(header(r#","config":{"maxTokens":5.0,"model":"m","x":1,"provider":"p"}"#), header(""));
    }

    #[test]
    fn the_shape_is_checked_member_by_member() {
        let data = |header: &str| format!(r#"{{"header":{header},"reason":"initial"}}"#);
        let with = |members: &str| data(&format!(r#"{{"config":{CONFIG}{members}}}"#));
        for (data, expected) in [
            (with(r#","system":"s","tools":[],"adapterDefaults":{"maxTokens":true}"#), ""),
            (with(r#","tools":"{{tools}}","other":1"#), ""),
            ("null".to_owned(), "header-object"),
            (data("null"), "header-object"),
            (data("{}"), "header-config"),
            (data(r#"{"config":{"provider":"p","model":""}}"#), "header-route"),
            (data(r#"{"config":{"provider":"p","model":"m","reasoningEffort":""}}"#), "header-effort"),
            (with(r#","adapterDefaults":{"maxTokens":false}"#), "header-defaults"),
            (with(r#","adapterDefaults":{"reasoningEffort":true}"#), "header-defaults"),
            (with(r#","adapterDefaults":{"other":true}"#), "header-defaults"),
            (with(r#","adapterDefaults":null"#), "header-defaults"),
            (with(r#","system":null"#), "header-system"),
            (with(r#","tools":{}"#), "header-tools"),
        ] {
            for origin in [Origin::Append, Origin::Import] {
                assert_eq!(rule(&data, origin), expected, "{data}");
            }
        }
    }

    #[test]
    fn reasons_are_four_on_write_and_open_on_import() {
        let with = |members: &str| format!(r#"{{"header":{{"config":{CONFIG}}}{members}}}"#);
        for reason in ["initial", "resume", "change", "series"] {
            assert_eq!(rule(&with(&format!(r#","reason":"{reason}""#)), Origin::Append), "");
        }
        for other in [r#","reason":"other""#, r#","reason":1"#, ""] {
            assert_eq!(rule(&with(other), Origin::Append), "header-reason");
            assert_eq!(rule(&with(other), Origin::Seed), "header-reason");
            for origin in [Origin::Import, Origin::Load] {
                let warning = check(Value::new(&with(other)), origin).unwrap();
                assert_eq!(warning, Some(WarningKind::UnknownHeaderReason));
            }
        }
        for (members, expected) in [
            (r#","reason":"change","startsSeries":true"#, ""),
            (r#","reason":"change","startsSeries":false"#, "starts-series"),
            (r#","reason":"series","startsSeries":true"#, "starts-series"),
            (r#","reason":"change","startsSeries":null"#, "starts-series"),
        ] {
            for origin in [Origin::Append, Origin::Import] {
                assert_eq!(rule(&with(members), origin), expected, "{members}");
            }
        }
    }
}
