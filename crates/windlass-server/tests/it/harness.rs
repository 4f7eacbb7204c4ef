//! A server on a memory store, and calls that check their answers.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use jsonschema::Validator;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;
use windlass_core::command::{Acquire, Quota};
use windlass_core::{Client, MemoryStore, Millis, RequestId, Store, TypeName, WorkerId};
use windlass_server::{Access, AuditLog, Role, Server, TokenFile};

/// The prefix of the API.
pub(crate) const V1: &str = "/api/v1";

/// Timeout for one call, and for anything that the server does by itself.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A server with a token for each role.
pub(crate) struct Api {
    pub(crate) router: Router,
    pub(crate) client: Client<dyn Store>,
    pub(crate) tokens: HashMap<Role, String>,
    pub(crate) audit: Recorder,
    pub(crate) folder: TempDir,
}

/// An audit log in memory, which can be made to fail or to stall.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    text: Vec<u8>,
    fails: bool,
    is_stalled: bool,
}

/// Ends the stall of a log when it is dropped: a test does not end while a write waits.
pub(crate) struct Stall(Recorder);

impl Drop for Stall {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().is_stalled = false;
    }
}

impl io::Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut content = self.0.lock().unwrap();
        while content.is_stalled {
            drop(content);
            std::thread::sleep(Duration::from_millis(5)); // tidy: polls for the end of the stall
            content = self.0.lock().unwrap();
        }
        if content.fails {
            return Err(io::Error::other("no space left"));
        }
        content.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Recorder {
    pub(crate) fn lines(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().text.clone()).unwrap();
        text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn fail(&self, fails: bool) {
        self.0.lock().unwrap().fails = fails;
    }

    /// Makes all writes wait until the returned value is dropped.
    pub(crate) fn stall(&self) -> Stall {
        self.0.lock().unwrap().is_stalled = true;
        Stall(self.clone())
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) json: Value,
}

impl Answer {
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, self.json);
        self.json
    }

    /// Checks a refusal: its status, and a body after RFC 9457.
    #[track_caller]
    pub(crate) fn refused(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.json);
        assert_eq!(self.headers[CONTENT_TYPE], "application/problem+json");
        assert_eq!(self.json["status"], status);
        self.json
    }
}

/// A request to build.
pub(crate) struct Call<'a> {
    api: &'a Api,
    method: Method,
    path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Body,
}

impl Api {
    /// Starts a server with tokens.
    pub(crate) fn new() -> Self {
        Self::with(|server| server)
    }

    pub(crate) fn with(configure: impl FnOnce(Server) -> Server) -> Self {
        let store = Client::new(MemoryStore::new()).into_dyn();
        Self::on(store, configure)
    }

    pub(crate) fn on(client: Client<dyn Store>, configure: impl FnOnce(Server) -> Server) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.toml");
        let create = |role: Role| (role, TokenFile::create(&path, role.as_str(), role, None).unwrap());
        let tokens = Role::ALL.map(create).into();
        let access = Access::tokens(TokenFile::open(&path).unwrap());
        let mut api = Self::with_access(client, access, configure);
        (api.tokens, api.folder) = (tokens, folder);
        api
    }

    pub(crate) fn with_access(
        client: Client<dyn Store>,
        access: Access,
        configure: impl FnOnce(Server) -> Server,
    ) -> Self {
        let audit = Recorder::default();
        let server = Server::new(client.clone(), access).audit(AuditLog::writer(audit.clone()));
        let server = configure(server.sample_interval(Duration::from_millis(20)));
        let (tokens, folder) = (HashMap::new(), tempfile::tempdir().unwrap());
        Self { router: server.router(), client, tokens, audit, folder }
    }

    /// Starts a server on the same files, as after a restart.
    pub(crate) fn restarted(&self) -> Router {
        let tokens = TokenFile::open(self.folder.path().join("tokens.toml")).unwrap();
        Server::new(self.client.clone(), Access::tokens(tokens)).router()
    }

    pub(crate) fn call(&self, method: Method, path: &str) -> Call<'_> {
        let is_safe = method.is_safe();
        let call = Call {
            api: self,
            method,
            path: format!("{V1}{path}"),
            headers: vec![(HOST, HeaderValue::from_static("localhost:8080"))],
            body: Body::empty(),
        };
        if is_safe { call } else { call.header(CONTENT_TYPE, "application/json") }
    }

    /// Calls as an administrator.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path).role(Role::Admin).send().await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path).role(Role::Admin).json(&body).send().await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.call(Method::DELETE, path).role(Role::Admin).send().await
    }

    /// Starts a chain and returns its id.
    pub(crate) async fn start(&self, job_type: &str) -> String {
        let started = self.post("/chains", json!({"type": job_type, "input": {"n": 1}})).await.ok();
        started["chain"].as_str().unwrap().to_owned()
    }

    /// Starts a chain that has failed.
    pub(crate) async fn start_failed(&self, job_type: &str) -> String {
        let chain = self.start(job_type).await;
        let failed = self.post(&format!("/chains/{chain}/complete"), json!({"fail": "it broke"})).await.ok();
        assert_eq!(failed["status"], "failed");
        chain
    }

    /// Acquires all due jobs of a type, as a worker does.
    pub(crate) async fn acquire(&self, job_type: &str) {
        self.client.store().acquire(acquire(job_type)).await.unwrap();
    }
}

/// Returns a request of a worker for all due jobs of a type.
pub(crate) fn acquire(job_type: &str) -> Acquire {
    let quota = Quota { job_type: TypeName::new(job_type).unwrap(), max: 100, lease: Millis::from_days(1) };
    let (request, worker) = (RequestId::new(), WorkerId::new());
    Acquire { request, worker, worker_name: None, types: vec![quota], max: 100 }
}

impl Call<'_> {
    pub(crate) fn role(self, role: Role) -> Self {
        match self.api.tokens.get(&role).cloned() {
            Some(token) => self.header(AUTHORIZATION, &format!("Bearer {token}")),
            None => self,
        }
    }

    pub(crate) fn header(mut self, name: impl TryInto<HeaderName>, value: &str) -> Self {
        let name = name.try_into().ok().unwrap();
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, HeaderValue::from_str(value).unwrap()));
        self
    }

    pub(crate) fn also_header(mut self, name: impl TryInto<HeaderName>, value: &str) -> Self {
        self.headers.push((name.try_into().ok().unwrap(), HeaderValue::from_str(value).unwrap()));
        self
    }

    pub(crate) fn without(mut self, name: impl TryInto<HeaderName>) -> Self {
        let name = name.try_into().ok().unwrap();
        self.headers.retain(|(known, _)| *known != name);
        self
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.body(body.to_string())
    }

    pub(crate) fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn request(self) -> Request<Body> {
        let mut request = Request::new(self.body);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.path.parse().unwrap();
        for (name, value) in self.headers {
            request.headers_mut().append(name, value);
        }
        request
    }

    /// Sends the request, and checks the answer against the OpenAPI document.
    pub(crate) async fn send(self) -> Answer {
        let router = self.api.router.clone();
        send(router, self.request()).await
    }
}

pub(crate) async fn send(router: Router, request: Request<Body>) -> Answer {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let answering = async {
        let (parts, body) = router.oneshot(request).await.unwrap().into_parts();
        (parts, axum::body::to_bytes(body, usize::MAX).await.unwrap())
    };
    let (parts, bytes) = tokio::time::timeout(LIMIT, answering).await.expect("the answer ends in time");
    let json = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let answer = Answer { status: parts.status, headers: parts.headers, json };
    check_headers(&answer.headers);
    if let Some(path) = path.strip_prefix(V1) {
        check_answer(&method, path, &answer);
    }
    answer
}

fn check_headers(headers: &HeaderMap) {
    let policy = headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert_eq!(headers["cache-control"], "no-store");
    assert!(headers.get("access-control-allow-origin").is_none());
}

/// The OpenAPI document, from the server itself.
pub(crate) fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let api = Api::new();
                let request = api.call(Method::GET, "/openapi.json").request();
                let response = api.router.clone().oneshot(request).await.unwrap();
                let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
                serde_json::from_slice(&bytes).unwrap()
            })
        })
        .join()
        .unwrap()
    })
}

/// Checks an answer against the document: its status, its content type and its body.
fn check_answer(method: &Method, path: &str, answer: &Answer) {
    let Some((template, operation)) = operation(method, path) else {
        assert!(answer.status.is_client_error(), "{method} {path} is not documented: {}", answer.status);
        return;
    };
    let responses = operation["responses"].as_object().unwrap();
    let key = answer.status.as_str();
    let response = match responses.get(key) {
        Some(response) => response,
        None => {
            assert!(!answer.status.is_success(), "{method} {template}: {key} is not documented");
            &responses["default"]
        }
    };
    let content_type = answer.headers[CONTENT_TYPE].to_str().unwrap();
    let schema = &response["content"][content_type]["schema"];
    assert!(schema.is_object(), "{method} {template}: {content_type} is not documented for {key}");
    if content_type == "text/event-stream" {
        return;
    }
    let validator = validator(schema);
    if let Some(error) = validator.iter_errors(&answer.json).next() {
        panic!("{method} {template} {key}: {error}\n{}", answer.json);
    }
}

/// Returns the documented operation of a path.
pub(crate) fn operation(method: &Method, path: &str) -> Option<(&'static str, &'static Value)> {
    let matches = |template: &str| {
        let (template, path): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
        let is_same = |(template, part): (&&str, &&str)| template == part || template.starts_with('{');
        template.len() == path.len() && template.iter().zip(&path).all(is_same)
    };
    let paths = document()["paths"].as_object().unwrap();
    // A fixed path wins over one with a parameter.
    let mut found: Vec<_> = paths.iter().filter(|(template, _)| matches(template)).collect();
    found.sort_by_key(|(template, _)| template.matches('{').count());
    let (template, item) = found.first()?;
    let operation = item.get(method.as_str().to_ascii_lowercase())?;
    Some((template.as_str(), operation))
}

/// Returns a validator of a schema of the document.
pub(crate) fn validator(schema: &Value) -> Arc<Validator> {
    static KNOWN: OnceLock<Mutex<HashMap<String, Arc<Validator>>>> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap();
    let entry = known.entry(schema.to_string()).or_insert_with(|| {
        let mut schema = schema.clone();
        schema["components"] = document()["components"].clone();
        Arc::new(jsonschema::draft202012::new(&schema).unwrap())
    });
    Arc::clone(entry)
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    windlass_testkit::wait_until(what, LIMIT, condition).await;
}
