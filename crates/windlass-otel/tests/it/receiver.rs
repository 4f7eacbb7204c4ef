//! An OTLP receiver over gRPC or HTTP, and a drawing of the spans that it got.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_otlp::{MetricExporter, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::{NumberDataPoint, metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use prost::Message;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use windlass_otel::AttemptIds;

/// What a receiver has received. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received(Arc<Mutex<Data>>);

#[derive(Debug, Default)]
struct Data {
    /// The spans, each with the name of its service.
    spans: Vec<(String, Span)>,
    /// The latest value of each series, by the name of its metric and its attributes. Of a histogram, the count.
    series: BTreeMap<(String, String), f64>,
}

/// Whether a receiver or an exporter uses gRPC or HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Grpc,
    Http,
}

/// Starts a receiver on a free port. Returns its endpoint.
pub(crate) async fn receive(wire: Wire) -> (Received, String) {
    let received = Received::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    match wire {
        Wire::Grpc => {
            let server = tonic::transport::Server::builder()
                .add_service(TraceServiceServer::new(received.clone()))
                .add_service(MetricsServiceServer::new(received.clone()));
            tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        }
        Wire::Http => {
            let traces = |State(received): State<Received>, body: Bytes| async move {
                received.take_traces(ExportTraceServiceRequest::decode(body).unwrap());
            };
            let metrics = |State(received): State<Received>, body: Bytes| async move {
                received.take_metrics(ExportMetricsServiceRequest::decode(body).unwrap());
            };
            let router = Router::new().route("/v1/traces", post(traces)).route("/v1/metrics", post(metrics));
            let server = axum::serve(listener, router.with_state(received.clone()));
            tokio::spawn(async move { server.await.unwrap() });
        }
    }
    (received, endpoint)
}

/// Creates providers that export to this endpoint.
pub(crate) fn providers(wire: Wire, endpoint: &str, service: &str) -> (SdkTracerProvider, SdkMeterProvider) {
    providers_within(Duration::from_secs(10), wire, endpoint, service)
}

/// Creates providers that export to this endpoint, and give up after this time.
pub(crate) fn providers_within(
    timeout: Duration,
    wire: Wire,
    endpoint: &str,
    service: &str,
) -> (SdkTracerProvider, SdkMeterProvider) {
    let resource = || Resource::builder().with_service_name(service.to_owned()).build();
    let (spans, metrics) = exporters(timeout, wire, endpoint);
    let traces = SdkTracerProvider::builder()
        .with_resource(resource())
        .with_id_generator(AttemptIds::new())
        .with_batch_exporter(spans);
    let metrics = SdkMeterProvider::builder().with_resource(resource()).with_periodic_exporter(metrics);
    (traces.build(), metrics.build())
}

/// Creates exporters to this endpoint that give up after this time.
pub(crate) fn exporters(timeout: Duration, wire: Wire, endpoint: &str) -> (SpanExporter, MetricExporter) {
    let (spans, metrics) = match wire {
        Wire::Grpc => {
            let spans = SpanExporter::builder().with_tonic().with_endpoint(endpoint);
            let metrics = MetricExporter::builder().with_tonic().with_endpoint(endpoint);
            (spans.with_timeout(timeout).build(), metrics.with_timeout(timeout).build())
        }
        Wire::Http => {
            let spans = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
            let spans = spans.with_endpoint(format!("{endpoint}/v1/traces"));
            let metrics = MetricExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
            let metrics = metrics.with_endpoint(format!("{endpoint}/v1/metrics"));
            (spans.with_timeout(timeout).build(), metrics.with_timeout(timeout).build())
        }
    };
    (spans.unwrap(), metrics.unwrap())
}

/// Exports everything. On a separate thread, because it blocks.
pub(crate) async fn flush(traces: SdkTracerProvider, metrics: SdkMeterProvider) {
    let flush = move || {
        traces.force_flush().unwrap();
        metrics.force_flush().unwrap();
    };
    tokio::task::spawn_blocking(flush).await.unwrap();
}

impl Received {
    fn take_traces(&self, request: ExportTraceServiceRequest) {
        for resource in request.resource_spans {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let service = attributes.into_iter().find(|attribute| attribute.key == "service.name");
            let service = match service.and_then(|service| service.value?.value) {
                Some(Value::StringValue(service)) => service,
                _ => String::new(),
            };
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().unwrap().spans.extend(spans.map(|span| (service.clone(), span)));
        }
    }

    fn take_metrics(&self, request: ExportMetricsServiceRequest) {
        let scopes = request.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
        let mut data = self.0.lock().unwrap();
        for metric in scopes.flat_map(|scope| scope.metrics) {
            for (attributes, value) in points(metric.data.unwrap()) {
                data.series.insert((metric.name.clone(), attributes), value);
            }
        }
    }

    /// Returns the sum of all series of this metric whose attributes, as `name=value`, contain the text.
    pub(crate) fn value(&self, metric: &str, attributes: &str) -> f64 {
        let data = self.0.lock().unwrap();
        let of_metric = data.series.iter().filter(|((name, _), _)| name == metric);
        of_metric.filter(|((_, labels), _)| labels.contains(attributes)).map(|(_, value)| value).sum()
    }

    /// Returns all series, for a message.
    pub(crate) fn series(&self) -> String {
        let data = self.0.lock().unwrap();
        data.series.iter().map(|((name, labels), value)| format!("{name}{{{labels}}} {value}\n")).collect()
    }

    /// Returns the spans with this name.
    pub(crate) fn named(&self, name: &str) -> Vec<Span> {
        let data = self.0.lock().unwrap();
        data.spans.iter().map(|(_, span)| span).filter(|span| span.name == name).cloned().collect()
    }

    /// Returns the number of spans.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().spans.len()
    }

    /// Draws the spans as trees, siblings in the order of their start. A line has the name, the kind, the service in
    /// brackets if `services` says so, the status if it is an error, and the names of the linked spans.
    pub(crate) fn draw(&self, services: bool) -> String {
        let data = self.0.lock().unwrap();
        let by_id: BTreeMap<&[u8], &Span> =
            data.spans.iter().map(|(_, span)| (&*span.span_id, span)).collect();
        let mut children = BTreeMap::<&[u8], Vec<&(String, Span)>>::new();
        for entry in &data.spans {
            let parent = &*entry.1.parent_span_id;
            // The parent of a root may be a span that nobody exported.
            let parent = if by_id.contains_key(parent) { parent } else { &[] };
            children.entry(parent).or_default().push(entry);
        }
        for siblings in children.values_mut() {
            siblings.sort_by_key(|(_, span)| (span.start_time_unix_nano, span.name.clone()));
        }
        let mut drawing = String::new();
        draw_below(&[], 0, &children, &by_id, services, &mut drawing);
        drawing
    }
}

fn draw_below(
    parent: &[u8],
    depth: usize,
    children: &BTreeMap<&[u8], Vec<&(String, Span)>>,
    by_id: &BTreeMap<&[u8], &Span>,
    services: bool,
    drawing: &mut String,
) {
    for (service, span) in children.get(parent).into_iter().flatten() {
        let kind = match SpanKind::try_from(span.kind).unwrap() {
            SpanKind::Client => "client",
            SpanKind::Producer => "producer",
            SpanKind::Consumer => "consumer",
            SpanKind::Server => "server",
            _ => "internal",
        };
        write!(drawing, "{}{} ({kind})", "  ".repeat(depth), span.name).unwrap();
        if services {
            write!(drawing, " [{service}]").unwrap();
        }
        if let Some(status) = span.status.as_ref().filter(|status| status.code() == StatusCode::Error) {
            write!(drawing, " ERROR {}", status.message).unwrap();
        }
        let mut links: Vec<_> = span
            .links
            .iter()
            .map(|link| by_id.get(&*link.span_id).map_or("?", |span| span.name.as_str()))
            .collect();
        links.sort_unstable();
        if !links.is_empty() {
            write!(drawing, " -> {}", links.join(", ")).unwrap();
        }
        drawing.push('\n');
        draw_below(&span.span_id, depth + 1, children, by_id, services, drawing);
    }
}

/// Returns the attributes and the value of each point of a metric.
#[expect(clippy::cast_precision_loss, reason = "the tests count few things")]
fn points(data: metric::Data) -> Vec<(String, f64)> {
    let number = |point: NumberDataPoint| {
        let value = match point.value.unwrap() {
            number_data_point::Value::AsDouble(value) => value,
            number_data_point::Value::AsInt(value) => value as f64,
        };
        (labels(point.attributes), value)
    };
    match data {
        metric::Data::Gauge(gauge) => gauge.data_points.into_iter().map(number).collect(),
        metric::Data::Sum(sum) => sum.data_points.into_iter().map(number).collect(),
        metric::Data::Histogram(histogram) => {
            let points = histogram.data_points.into_iter();
            points.map(|point| (labels(point.attributes), point.count as f64)).collect()
        }
        other => panic!("{other:?} is not used"),
    }
}

/// Returns attributes as text, sorted.
fn labels(attributes: Vec<KeyValue>) -> String {
    let label = |attribute: KeyValue| match attribute.value.unwrap().value.unwrap() {
        Value::StringValue(value) => format!("{}={value}", attribute.key),
        value => panic!("{}: {value:?} is not used", attribute.key),
    };
    let mut labels: Vec<_> = attributes.into_iter().map(label).collect();
    labels.sort();
    labels.join(",")
}

/// Returns an attribute of a span as text.
pub(crate) fn attribute(span: &Span, key: &str) -> Option<String> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.take_traces(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Received {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.take_metrics(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}
