use std::collections::HashSet;

use windlass_testkit::{shared_postgres, shared_redis};

#[tokio::test]
async fn all_tests_share_one_server_with_separate_namespaces() {
    let (a, b) = tokio::join!(shared_redis(), shared_redis());
    // Each test has its own runtime. The server outlives the runtime of its first user.
    let c = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(shared_redis())
    });
    // Checks that the future is `Send`.
    let d = tokio::spawn(shared_redis());
    let all = [a, b, c.join().unwrap(), d.await.unwrap()];
    assert_eq!(all.iter().map(|shared| shared.server().pid()).collect::<HashSet<_>>().len(), 1);
    assert_eq!(all.iter().map(|shared| shared.namespace()).collect::<HashSet<_>>().len(), 4);
    assert_eq!(all[0].url(), all[0].server().url());
}

#[tokio::test]
async fn each_test_gets_its_own_database() {
    let (a, b) = tokio::join!(shared_postgres(), shared_postgres());
    assert_eq!(a.server().pid(), b.server().pid());
    for shared in [&a, &b] {
        let url = shared.fresh_database();
        assert_eq!(url, shared.server().url_of(shared.namespace()));
        let sql = "CREATE TABLE t (v int); SELECT current_database()";
        assert_eq!(shared.server().query_in(shared.namespace(), sql), shared.namespace());
    }
}
