//! Small payloads are in the rows of their jobs. Larger ones have their own keys.

use std::sync::Arc;

use windlass_conformance::{LEASE, Subject, complete, continue_with, fail, retry};
use windlass_core::command::{
    Command, CompleteFromOutside, Create, Expire, GetChains, GetJobs, JobFilter, ListJobs, Outcome, Page,
    Retry, RetryTarget, SetRetention, Settle, Settled, Settlement, Step,
};
use windlass_core::{ChainId, Codec, Payload, RequestId, Status};
use windlass_redis::RedisStore;
use windlass_redis::known_bad::open_without_short_paths;

use crate::database::{Database, subject};
use crate::fixture::fresh;

const HUNDRED_DAYS: u64 = 100 * 24 * 60 * 60 * 1_000;

/// Maximum size of a payload in a row. The codec's name and a colon count too.
const INLINE_MAX: usize = 256;

/// Sizes of the smallest payload, around the maximum, and of a payload that no two bytes can count.
const SIZES: [usize; 5] = [5, INLINE_MAX - 1, INLINE_MAX, INLINE_MAX + 1, 70_000];

/// Returns a payload of this stored size. `filler` distinguishes payloads of equal size.
fn sized(bytes: usize, filler: u8) -> Payload {
    let codec = Codec::new("json").unwrap();
    Payload::new(codec, vec![filler; bytes - "json:".len()]).unwrap()
}

fn complete_with(output: Payload) -> Outcome {
    Outcome::Complete { output, retention: None, create: Vec::new() }
}

/// Returns a store with the short paths, and one without.
async fn both_paths() -> [(Subject, Database); 2] {
    let (server, clock, options) = fresh().await;
    let database = Database::open(&server).await;
    let store = Arc::new(open_without_short_paths(&server.url(), options).await.unwrap());
    let library = (Subject::new(store.clone(), store, clock).keeping(server), database);
    [subject().await, library]
}

/// Returns the keys of payloads.
async fn payload_keys(database: &mut Database) -> Vec<String> {
    let (input, output) = (database.key("input:"), database.key("output:"));
    let mut names = database.names().await;
    names.retain(|name| name.starts_with(&input) || name.starts_with(&output));
    names
}

/// Checks which payloads of the only chain have their own keys.
async fn check_keys(chain: ChainId, input: usize, output: usize, database: &mut Database) {
    let own = [("input", input), ("output", output)].into_iter().filter(|(_, size)| *size > INLINE_MAX);
    let own: Vec<_> = own.map(|(kind, _)| database.key(&format!("{kind}:{chain}"))).collect();
    assert_eq!(payload_keys(database).await, own, "input of {input} bytes, output of {output}");
}

/// Removes all chains and checks that no key of theirs remains.
async fn check_removal(subject: &Subject, database: &mut Database) {
    for _ in 0..2 {
        subject.advance(HUNDRED_DAYS);
        while subject.run(Expire { max: 10 }).await.more {}
    }
    assert_eq!(database.names().await, [database.key("former"), database.key("meta")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_is_in_the_row_unless_it_is_large() {
    for (subject, mut database) in both_paths().await {
        for (input_size, output_size) in SIZES.into_iter().flat_map(|one| SIZES.map(|other| (one, other))) {
            let (input, output) = (sized(input_size, b'1'), sized(output_size, b'2'));
            let chain = subject.start("a").payload(input.clone()).await;
            check_keys(chain, input_size, 0, &mut database).await;
            let attempt = subject.acquire_one("a").await;
            assert_eq!(attempt.job.input, input);
            subject.renew(&attempt).await;
            subject.apply(&attempt, complete_with(output.clone())).await;
            check_keys(chain, input_size, output_size, &mut database).await;

            let job = subject.chain(chain).await.latest;
            assert_eq!((&job.input, &job.output), (&input, &Some(output)));
            // This writes the row again.
            subject.run(SetRetention { chains: vec![chain.into()], retention: LEASE }).await;
            let get = GetJobs { jobs: vec![job.id] };
            assert_eq!(subject.run(get).await.jobs[0].as_ref(), Some(&job));
            assert_eq!(subject.chain(chain).await.latest, job);
            let list = ListJobs { filter: JobFilter::default(), page: Page::default() };
            assert_eq!(subject.run(list).await.jobs[0], job);
            check_removal(&subject, &mut database).await;
        }
    }
}

/// Batches with payloads of both forms, in the order of the chains. No input is so large that the library handles it.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_may_have_payloads_of_both_forms() {
    for (subject, mut database) in both_paths().await {
        let inputs: Vec<_> = (0..20).map(|number| sized(SIZES[number % 4], b'a' + number as u8)).collect();
        let chains = inputs.iter().map(|input| subject.start("a").payload(input.clone()).build());
        let create = Create { chains: chains.collect() };
        let ids: Vec<_> = create.chains.iter().map(|chain| chain.id).collect();
        subject.run(create).await;
        for (at, attempt) in (0..).zip(subject.acquire("a", 20).await) {
            assert_eq!((attempt.job.chain, &attempt.job.input), (ids[at], &inputs[at]));
            subject.apply(&attempt, complete_with(inputs[19 - at].clone())).await;
        }
        let targets = ids.iter().copied().map(Into::into).collect();
        let chains = subject.run(GetChains { chains: targets }).await.chains;
        for (at, chain) in (0..).zip(chains) {
            let job = chain.unwrap().latest;
            assert_eq!((job.input, job.output), (inputs[at].clone(), Some(inputs[19 - at].clone())));
        }
        check_removal(&subject, &mut database).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_runs_again_keeps_its_input() {
    for (subject, mut database) in both_paths().await {
        for size in SIZES {
            let input = sized(size, b'1');
            let chain = subject.start("a").payload(input.clone()).await;
            let attempts = [
                subject.work("a", retry("again")).await,
                subject.work("a", Outcome::Release).await,
                subject.acquire_one("a").await,
            ];
            subject.advance(60_000);
            assert_eq!(subject.reap().await.reaped.len(), 1);
            let failed = subject.work("a", fail("no")).await;
            let version = subject.chain(chain).await.latest.version;
            let target = RetryTarget { job: failed.job.id, version };
            subject.run(Retry { chains: vec![target] }).await;
            let last = subject.work("a", complete("1")).await;
            assert!(attempts.iter().chain([&failed, &last]).all(|attempt| attempt.job.input == input));
            check_keys(chain, size, 0, &mut database).await;
            check_removal(&subject, &mut database).await;
        }
    }
}

/// Each job of a chain has its own form, and so has the output that a dependent receives.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_may_change_between_the_forms() {
    for (subject, mut database) in both_paths().await {
        for (size, next_size) in [(INLINE_MAX, INLINE_MAX + 1), (INLINE_MAX + 1, INLINE_MAX)] {
            let (input, next_input) = (sized(size, b'1'), sized(next_size, b'2'));
            let chain = subject.start("a").payload(input.clone()).await;
            subject.start("b").payload(next_input.clone()).blocked_by([chain]).await;
            let next = subject.start("a").payload(next_input.clone()).next_job();
            assert_eq!(subject.work("a", continue_with(next)).await.job.input, input);
            assert_eq!(subject.work("a", complete_with(input.clone())).await.job.input, next_input);

            let found = subject.chain(chain).await;
            assert_eq!((&found.first.input, &found.first.output), (&input, &None));
            assert_eq!((&found.latest.input, &found.latest.output), (&next_input, &Some(input.clone())));
            let dependent = subject.work("b", complete("1")).await;
            assert_eq!(dependent.blockers[0].output.as_ref(), Some(&input));
            assert_eq!(dependent.job.input, next_input);
            check_removal(&subject, &mut database).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_from_outside_has_either_form() {
    let (subject, mut database) = subject().await;
    for size in SIZES {
        let chain = subject.start("a").payload(sized(size, b'1')).await;
        let job = subject.chain(chain).await.latest;
        let next = subject.start("a").payload(sized(size, b'2')).next_job();
        let steps = vec![
            Step::Continue { next, create: Vec::new() },
            Step::Complete { output: sized(size, b'3'), retention: None, create: Vec::new() },
        ];
        let request = RequestId::new();
        subject.run(CompleteFromOutside { request, job: job.id, version: job.version, steps }).await;
        let found = subject.chain(chain).await;
        assert_eq!((found.first.input, found.first.output), (sized(size, b'1'), None));
        let latest = found.latest;
        assert_eq!((latest.input, latest.output), (sized(size, b'2'), Some(sized(size, b'3'))));
        check_removal(&subject, &mut database).await;
    }
}

/// A refused settlement is undone. That restores the rows that it had changed, here those of two blockers.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_settlement_keeps_the_payloads_of_other_jobs() {
    let (subject, mut database) = subject().await;
    for size in SIZES {
        let (input, output) = (sized(size, b'1'), sized(size, b'2'));
        let open = subject.start("open").payload(input.clone()).await;
        let closed = subject.start("closed").payload(input.clone()).await;
        subject.work("closed", complete_with(output.clone())).await;
        subject.start("a").await;
        let attempt = subject.acquire_one("a").await;
        let create = vec![
            subject.start("b").blocked_by([open, closed]).build(),
            subject.start("b").blocked_by([ChainId::new()]).build(),
        ];
        let refused = Outcome::Complete { output: output.clone(), retention: None, create };
        let settlement = |outcome| Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome };
        let settlements = vec![settlement(refused), settlement(retry("again"))];
        let settled = subject.run(Settle { settlements }).await.settled;
        assert!(matches!(settled[..], [Settled::Refused(_), Settled::Applied(_)]), "{settled:?}");

        let retried = subject.work("a", complete_with(output.clone())).await.job;
        assert_eq!(retried.output, None);
        assert_eq!(subject.work("open", complete("1")).await.job.input, input);
        let closed = subject.chain(closed).await.latest;
        assert_eq!((closed.input, closed.output), (input, Some(output)));
        check_removal(&subject, &mut database).await;
    }
}

/// Another program has removed the key of an input.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_payload_is_reported_and_nothing_is_written() {
    for (subject, mut database) in both_paths().await {
        let chain = subject.start("a").payload(sized(INLINE_MAX + 1, b'1')).await;
        let key = database.key(&format!("input:{chain}"));
        let _: () = redis::AsyncCommands::del(&mut database.connection, &key).await.unwrap();
        let before = database.dump().await;
        let acquire = Command::from(subject.acquire_request(&["a"], 1));
        let get = GetChains { chains: vec![chain.into()] }.into();
        for command in [acquire, get] {
            let error = subject.store.execute(command).await.unwrap_err();
            assert!(error.to_string().contains(&key), "{error}");
        }
        assert!(database.dump().await == before);
    }
}

/// The permission for payloads with their own keys is needed only if there is one, and is checked before the first write.
#[tokio::test(flavor = "multi_thread")]
async fn payloads_in_rows_need_no_permission_for_other_keys() {
    let (server, clock, options) = fresh().await;
    let mut database = Database::open(&server).await;
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg(server.namespace()).arg("on").arg(">secret").arg("allcommands");
    // Everything but `input:` and `output:` may be written. A call names the keys `{…}` and `{…}:`.
    user.arg("%R~*").arg("~*}").arg("~*}:").arg("~*}:[^io]*").arg("~*}:or*");
    let _: () = user.query_async(&mut database.connection).await.unwrap();
    let url = server.url().replace("redis://", &format!("redis://{}:secret@", server.namespace()));
    let store = RedisStore::open(&url, options.clone()).await.unwrap();
    let library = open_without_short_paths(&url, options).await.unwrap();
    for store in [store, library].map(Arc::new) {
        let subject = Subject::new(store.clone(), store, clock.clone());
        let chain = subject.start("a").payload(sized(INLINE_MAX, b'1')).await;
        let attempt = subject.acquire_one("a").await;
        let before = database.dump().await;
        let large = sized(INLINE_MAX + 1, b'1');
        let create = Create { chains: vec![subject.start("a").payload(large.clone()).build()] };
        let error = subject.store.create(create).await.unwrap_err();
        assert!(error.to_string().contains("may not use MSET"), "{error}");
        let settlements =
            vec![Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome: complete_with(large) }];
        let error = subject.store.settle(Settle { settlements }).await.unwrap_err();
        assert!(error.to_string().contains("may not use MSET"), "{error}");
        assert!(database.dump().await == before);
        subject.apply(&attempt, complete_with(sized(INLINE_MAX, b'2'))).await;
        subject.expect_status(chain, Status::Completed).await;
    }
}
