//! Jobs of every kind, for tests of what a store shows besides the contract.

use windlass_core::command::{Cancel, CancelMode};
use windlass_core::{ChainId, Codec, Payload};

use crate::outcome::{complete, continue_with, fail, retry};
use crate::subject::Subject;

/// Creates a job of each status, whose type has the name of the status, and a chain of two jobs, `first` and `second`.
/// The name of the subject's worker is `host-7`.
///
/// The job `pending` has the key `mail-7` and is due after 5 s. The job `blocked` waits for it, and waited for the job
/// `completed`, whose output has an integer of 30 digits. The job `failed` ran twice, one second apart.
pub async fn jobs_of_every_status(s: &Subject) {
    let open = s.start("pending").key("mail-7").after(5_000).input(r#"{"to": "Ann", "order": 7}"#).await;
    let done = s.start("completed").max_attempts(3).await;
    s.work("completed", complete(r#"{"sum": 123456789012345678901234567890}"#)).await;
    s.start("blocked").blocked_by([done, open]).await;
    s.start("running").priority(5).await;
    s.acquire_one("running").await;
    let cancelled = s.start("cancelled").await;
    s.run(Cancel { chains: vec![cancelled.into()], mode: CancelMode::UnlessRunning }).await;
    s.start("first").input("1").await;
    s.work("first", continue_with(s.start("second").input("2").next_job())).await;
    s.start("failed").await;
    s.work("failed", retry("timed out")).await;
    s.advance(1_000);
    s.work("failed", fail("no such order")).await;
}

/// Payloads that are not JSON that a database can show: text that is cut off, bytes that are not text, too many nested
/// arrays, another encoding, and nothing.
pub async fn unreadable_inputs(s: &Subject) -> Vec<ChainId> {
    let messages = Codec::new("msgpack").expect("the name is valid");
    let payloads = [
        (Codec::json(), br#"{"to": "An"#.to_vec()),
        (Codec::json(), b"\xff\xfe".to_vec()),
        (Codec::json(), vec![b'['; 100_000]),
        (messages, b"\x81\xa2to\xa3Ann".to_vec()),
        (Codec::json(), Vec::new()),
    ];
    let mut chains = Vec::new();
    for (codec, bytes) in payloads {
        let payload = Payload::new(codec, bytes).expect("the payload is short");
        chains.push(s.start("unreadable").payload(payload).await);
    }
    chains
}
