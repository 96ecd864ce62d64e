use super::*;

fn accepts(text: &str) -> bool {
    scan(text).is_ok()
}

#[test]
fn grammar_agrees_with_serde_json_on_small_texts() {
    // Every text of up to six symbols over an alphabet that can spell each production.
    let alphabet = ["{", "}", "[", "]", ",", ":", "\"", "a", "\\", "0", "1", "-", ".", "e", "null", " "];
    let mut texts = vec![String::new()];
    for _ in 0..5 {
        texts = texts.iter().flat_map(|t| alphabet.iter().map(move |a| format!("{t}{a}"))).collect();
        for text in &texts {
            let expected = serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok();
            assert_eq!(accepts(text), expected, "{text}");
        }
        if texts.len() > 70_000 {
            break;
        }
    }
}

#[test]
fn strings_refuse_controls_and_bad_escapes_and_keep_lone_surrogates() {
    for good in
        [r#""\ud83c""#, r#""\u0000""#, "\"\u{2028}\u{7f}\"", r#""\"\\\/\b\f\n\r\t""#, "\"0123456789é\""]
    {
        assert!(accepts(good), "{good}");
    }
    for bad in ["\"\u{1f}\"", "\"aaaaaaaaaaaa\n\"", r#""\x""#, r#""\u12g4""#, r#""\u12"#, "\"", "\"\\"] {
        assert!(!accepts(bad), "{bad}");
    }
}

#[test]
fn faults_name_the_byte() {
    assert_eq!(scan("{\"a\":1,}"), Err(Fault { kind: FaultKind::Unexpected, offset: 7 }));
    assert_eq!(scan("[1,2"), Err(Fault { kind: FaultKind::Truncated, offset: 4 }));
    assert_eq!(scan("{} {}"), Err(Fault { kind: FaultKind::Trailing, offset: 3 }));
    assert_eq!(scan("[1,2").unwrap_err().to_string(), "it ends inside a value, at byte 4");
    assert_eq!(scan("  "), Err(Fault { kind: FaultKind::Truncated, offset: 2 }));
}

#[test]
fn peculiarities_are_noted_per_top_level_member() {
    let text = r#"{"seq":-0,"a":{"x":[-0.0e5]},"b":9007199254740993,"c":{"k":1,"k":2},"d":1e400}"#;
    let scan = scan(text).unwrap();
    let notes: Vec<Notes> = scan.members.iter().map(|m| m.notes).collect();
    assert_eq!(notes[0].negative_zero, Some(7));
    assert_eq!(notes[1].negative_zero, Some(20));
    assert_eq!(notes[1].duplicate_key, None);
    assert_eq!(notes[2].unsafe_integer, Some(33));
    assert_eq!(notes[3].duplicate_key, Some(61));
    assert_eq!(notes[4].non_finite, Some(72));
    assert_eq!(scan.notes.negative_zero, Some(7));
    assert_eq!(&text[scan.members[3].value.0 as usize..scan.members[3].value.1 as usize], r#"{"k":1,"k":2}"#);
}

#[test]
fn number_notes_follow_the_double() {
    let notes = |text: &str| scan(text).unwrap().notes;
    for negative in ["-0", "-0.0", "-0e9", "-1e-400", "-0.000000000000000000"] {
        assert!(notes(negative).negative_zero.is_some(), "{negative}");
    }
    for plain in ["0", "-1", "-0.1", "1e-400", "9007199254740991", "-9007199254740991", "1e300"] {
        assert_eq!(notes(plain), Notes::default(), "{plain}");
    }
    for wide in ["9007199254740992", "-9007199254740992", "18446744073709551615"] {
        assert!(notes(wide).unsafe_integer.is_some(), "{wide}");
    }
    let digits = "9".repeat(400);
    assert!(notes(&digits).non_finite.is_some() && notes("-1e999").non_finite.is_some());
}

#[test]
fn repeated_keys_are_found_by_meaning_in_small_and_large_objects() {
    let noted = |text: &str| scan(text).unwrap().notes.duplicate_key;
    assert_eq!(noted(r#"[{"ab":1,"\u0061b":2}]"#), Some(9));
    assert_eq!(noted(r#"[{"a":{"a":{"a":1}},"b":1}]"#), None);
    let many: String = (0..1000).map(|i| format!("\"k{i}\":{i},")).collect();
    assert_eq!(noted(&format!("{{{many}\"z\":0}}")), None);
    assert!(noted(&format!("{{{many}\"k7\":0}}")).is_some());
    assert_eq!(noted(r#"{"a":1,"b":2,"a":3}"#), Some(13));
}

#[test]
fn depth_has_no_limit() {
    let deep = 1_000_000;
    let text = format!("{}{}{}", "[{\"a\":".repeat(deep), "1", "}]".repeat(deep));
    let scanned = scan(&text).unwrap();
    assert_eq!(scanned.value, (0, u32::try_from(text.len()).unwrap()));
    let value = Value::new(&text);
    assert_eq!(value.elements().count(), 1);
    assert!(equal(value, Value::new(&format!(" {text}"))));
    assert!(!accepts(&text[..text.len() - 1]));
}

#[test]
fn values_are_walked_in_place() {
    let text = r#" { "a" : [ 1 , {"x":"}]\"" } , null ] , "b\u0063" : "s" , "a":true, "n":-3.5e1 } "#;
    assert!(accepts(text));
    let value = Value::new(text);
    let keys: Vec<_> = value.members().map(|m| m.key).collect();
    assert_eq!(keys, ["\"a\"", "\"b\\u0063\"", "\"a\"", "\"n\""]);
    let first = value.members().next().unwrap().value;
    let raws: Vec<_> = first.elements().map(|e| e.raw()).collect();
    assert_eq!(raws, ["1", r#"{"x":"}]\"" }"#, "null"]);
    assert!(value.get("a").unwrap().is_true());
    assert!(value.get("bc").unwrap().is_str("s"));
    assert_eq!(value.get("n").unwrap().safe_integer(), Some(-35));
    assert!(value.get("missing").is_none());
    let [n, b] = value.get_all(["n", "bc"]);
    assert_eq!((n.unwrap().raw(), b.unwrap().raw()), ("-3.5e1", "\"s\""));
}

#[test]
fn integers_are_judged_by_their_double() {
    let int = |t| Value::new(t).safe_integer();
    assert_eq!(int("2e0"), Some(2));
    assert_eq!(int("0.1e1"), Some(1));
    assert_eq!(int("-0"), Some(0));
    assert_eq!(int("9007199254740990.9"), Some(9_007_199_254_740_991));
    assert_eq!(int("9007199254740993"), None);
    assert_eq!(int("0.5"), None);
    assert_eq!(int("\"1\""), None);
}

#[test]
fn strings_decode_and_encode_as_javascript_does() {
    let round = |literal: &str| {
        let mut out = String::new();
        write_string(&mut out, &JsonString::decode(literal));
        out
    };
    assert_eq!(round(r#""\ud83c\udff7 \ud83c x \udff7""#), "\"\u{1F3F7} \\ud83c x \\udff7\"");
    assert_eq!(round(r#""\udff7\ud83c""#), r#""\udff7\ud83c""#);
    assert_eq!(round(r#""\u0000\u001f\b\/é""#), r#""\u0000\u001f\b/é""#);
    assert_eq!(JsonString::decode(r#""\u0061""#), *"a");
    assert_eq!(JsonString::decode(r#""\ud83c""#).to_str(), None);
}

#[test]
fn equality_ignores_key_order_and_spelling_only() {
    let eq = |a, b| equal(Value::new(a), Value::new(b));
    assert!(eq(r#"{"a":1,"b":[1.0,"\u0061"]}"#, r#"{"b":[1,"a"],"a":1e0}"#));
    assert!(eq(r#"{"a":1,"a":2}"#, r#"{"a":2}"#));
    assert!(eq("-0", "0"));
    assert!(!eq(r#"{"a":null}"#, "{}"));
    assert!(!eq("[1,2]", "[2,1]"));
    assert!(!eq("[[1],2]", "[[1,2]]"));
    assert!(!eq("9007199254740993", "9007199254740995"));
    let digest = |t| {
        let mut d = Digester::default();
        d.value(Value::new(t));
        d.finish()
    };
    assert_eq!(digest(r#"{"a":1,"b":{}}"#), digest(r#"{"b":{},"a":1.0}"#));
    assert_ne!(digest("[]"), digest("{}"));
}

#[test]
fn tool_lists_compare_as_javascript_text() {
    let eq = |a, b| ordered_equal(Value::new(a), Value::new(b));
    assert!(eq(r#"[{"b":1,"2":0,"a":-0,"1":1.0}]"#, r#"[{"1":1,"2":0,"b":1e0,"\u0061":0}]"#));
    assert!(eq(r#"{"a":1,"b":2,"a":3}"#, r#"{"a":3,"b":2}"#));
    assert!(!eq(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#));
    assert!(!eq(r#"{"01":1,"b":2}"#, r#"{"b":2,"01":1}"#), "a key with a leading zero is no index");
    assert!(!eq("[]", "{}") && !eq("[[]]", "[]") && !eq("[[],[]]", "[[[]]]") && !eq(r#"["1"]"#, "[1]"));
    assert!(eq(r#"[ [ ] , { } , [ { } ] , "" ]"#, r#"[[],{},[{}],""]"#));
}

#[test]
fn deep_and_wide_values_compare_in_the_time_of_one_walk() {
    let nest = |inner: &str| format!("{}{inner}{}", "[{\"a\":[0,".repeat(20_000), "]}]".repeat(20_000));
    assert!(equal(Value::new(&nest("1")), Value::new(&nest("1.0"))));
    assert!(!ordered_equal(Value::new(&nest("1")), Value::new(&nest("2"))));
    let wide = |spelled: &str| format!("{{{}\"z\":{spelled}}}", "\"k\":[],".repeat(20_000));
    assert!(equal(Value::new(&wide("1")), Value::new(r#"{"z":1e0,"k":[]}"#)));
}
