//! Values chosen by users come back unchanged and are never interpreted.

use windlass_core::{Codec, Payload};

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "bytes.payloads",
        "Payloads of any bytes are returned exactly, with the name of their codec.",
        ["B4.30", "B4.29"],
        payloads
    ),
    case!("bytes.large", "A payload of the maximum size can be stored.", ["never 9"], large),
    case!(
        "bytes.names",
        "Type names with special characters are distinguished and returned exactly.",
        ["B4.31", "never 9"],
        names
    ),
    case!(
        "bytes.keys",
        "Keys with special characters are distinguished and returned exactly.",
        ["B4.31", "never 9"],
        keys
    ),
    case!(
        "bytes.pairs",
        "Type and key are never confused where one ends and the other begins.",
        ["B4.31", "never 9"],
        pairs
    ),
];

/// Returns texts that have a special meaning in a shell, a path, a pattern, a statement, a channel or a parser.
fn hostile() -> Vec<String> {
    let mut texts: Vec<_> = HOSTILE.iter().map(|text| (*text).to_owned()).collect();
    texts.push("x".repeat(limit::NAME_MAX_BYTES));
    texts.push("ü".repeat(limit::NAME_MAX_BYTES / 2));
    texts
}

const HOSTILE: &[&str] = &[
    ":",
    "a:b",
    "a:b:exp",
    ":exp",
    "{}",
    "{a}",
    "{a}b",
    "a/b",
    "/",
    "..",
    "../../etc",
    ".",
    "a.b",
    "a.>",
    "*",
    "?",
    "[a]",
    "'",
    "\"",
    "`",
    "''",
    "'; drop table job; --",
    "%",
    "_",
    "a%",
    "\\",
    "\\0",
    "$1",
    "?1",
    ":name",
    " ",
    "a ",
    " a",
    "A",
    "a",
    "ä",
    "a\u{308}",
    "ß",
    "ss",
    "İ",
    "日本語",
    "\u{1f600}",
    "\u{200b}",
    "\u{feff}a",
    "null",
    "NULL",
    "0",
    "-1",
    "true",
    "job",
    "chain",
    "key",
    "#",
    "a#b",
    "a|b",
    "a,b",
    "a;b",
    "a&b",
    "a=b",
    "~",
    "$(id)",
    "%00",
    "%s",
    "&lt;",
];

async fn payloads(s: Subject) {
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let all = [
        (Codec::json(), b"null".to_vec()),
        (Codec::json(), b"".to_vec()),
        (Codec::new("msgpack").unwrap(), every_byte),
        (Codec::new("x-1").unwrap(), vec![0; 100]),
        (Codec::new("cbor").unwrap(), vec![0xff, 0xfe, 0x00, 0x80]),
        (Codec::json(), "{\"a\": \u{1f600}\u{2028} 'x' }".as_bytes().to_vec()),
    ];
    for (codec, bytes) in all {
        let payload = Payload::new(codec, bytes).unwrap();
        s.start("a").payload(payload.clone()).await;
        let attempt = s.acquire_one("a").await;
        assert_eq!(attempt.job.input, payload);
        let output = Outcome::Complete { output: payload.clone(), retention: None, create: Vec::new() };
        s.apply(&attempt, output).await;
        let job = s.through_other().job(attempt.job.id).await;
        assert_eq!((job.input, job.output), (payload.clone(), Some(payload)));
    }
}

async fn large(s: Subject) {
    let bytes: Vec<u8> = (0..limit::PAYLOAD_MAX_BYTES).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let payload = Payload::new(Codec::new("raw").unwrap(), bytes).unwrap();
    s.start("a").payload(payload.clone()).await;
    let attempt = s.acquire_one("a").await;
    assert!(attempt.job.input == payload, "the returned input differs from the stored one");
    s.apply(&attempt, Outcome::Complete { output: payload.clone(), retention: None, create: Vec::new() })
        .await;
    assert!(
        s.job(attempt.job.id).await.output == Some(payload),
        "the returned output differs from the stored one"
    );
}

async fn names(s: Subject) {
    let names = hostile();
    let chains: Vec<_> = names.iter().map(|name| s.start(name).key("k").build()).collect();
    for created in s.create(chains.clone()).await {
        summary(&created);
    }
    for (name, chain) in names.iter().zip(&chains) {
        assert_eq!(s.by_key(name, "k").await, Some(chain.id), "{name:?}");
        let jobs = s.acquire(name, 10).await;
        assert_eq!(chains_of(&jobs), [chain.id], "{name:?}");
        assert_eq!(jobs[0].job.job_type.as_str(), name);
        s.complete(&jobs[0], "1").await;
    }
}

async fn keys(s: Subject) {
    let mut keys = hostile();
    keys.extend(["a\nb", "a\r\nb", "\t", "\u{1}", "\u{7f}"].map(str::to_owned));
    keys.push("k".repeat(limit::KEY_MAX_BYTES));
    keys.push(format!("{}l", "k".repeat(limit::KEY_MAX_BYTES - 1)));
    let chains: Vec<_> = keys.iter().map(|text| s.start("a").key(text).hold(KeyHold::Any).build()).collect();
    for created in s.create(chains.clone()).await {
        summary(&created);
    }
    for attempt in s.acquire("a", 1_000).await {
        s.complete(&attempt, "1").await;
    }
    for (text, chain) in keys.iter().zip(&chains) {
        assert_eq!(existing(s.start("a").key(text).created().await).chain, chain.id, "{text:?}");
        assert_eq!(s.chain(chain.id).await.key.unwrap().key.as_str(), text);
    }
}

async fn pairs(s: Subject) {
    let pairs = [
        ("a", "b:c"),
        ("a:b", "c"),
        ("a/b", "c"),
        ("a", "b/c"),
        ("ab", "c"),
        ("a", "bc"),
        ("{a}", "b"),
        ("a", "{b}"),
    ];
    let mut ids = Vec::new();
    for (name, text) in pairs {
        ids.push(s.start(name).key(text).await);
    }
    for ((name, text), id) in pairs.into_iter().zip(ids) {
        assert_eq!(s.by_key(name, text).await, Some(id), "{name:?} {text:?}");
    }
}
