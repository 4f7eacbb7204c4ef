//! The same API on a store with files.

use serde_json::json;
use windlass_core::Client;

use crate::harness::Api;

#[tokio::test]
async fn the_api_works_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = windlass_sqlite::open(folder.path().join("jobs.db")).await.unwrap();
    let api = Api::on(Client::new(store).into_dyn(), |server| server);
    let chain = api.start_failed("mail").await;
    assert_eq!(api.get("/jobs?status=failed&limit=1").await.ok()["jobs"][0]["id"], json!(chain));
    let retried = api.post(&format!("/chains/{chain}/retry"), json!({})).await.ok();
    assert_eq!(retried["status"], "pending");
    assert_eq!(api.get(&format!("/chains/{chain}/graph")).await.ok()["chain"]["id"], json!(chain));
    assert_eq!(api.get("/overview").await.ok()["sample"]["sums"]["pending"], 1);
    api.delete(&format!("/chains/{chain}")).await.ok();
    api.client.close().await.unwrap();
    api.get("/types").await.refused(503);
}
