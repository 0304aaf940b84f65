//! The OpenAPI document, made from the table of routes.

use std::collections::BTreeSet;

use axum::body::Bytes;
use utoipa::PartialSchema as _;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::{AllOfBuilder, ArrayBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    ComponentsBuilder, Content, InfoBuilder, OpenApi, OpenApiBuilder, PathItem, PathsBuilder, Ref,
    RefOr, Required, Schema,
};

use super::problem::Problem;
use super::route::{Needs, Output, PREFIX, Route, SchemaOf};

#[derive(Clone)]
pub(super) struct DocumentText(pub(super) Bytes);

pub fn document(routes: &[Route]) -> OpenApi {
    let mut paths = PathsBuilder::new();
    for route in routes {
        let method = match route.method.as_str() {
            "GET" => HttpMethod::Get,
            "PUT" => HttpMethod::Put,
            "DELETE" => HttpMethod::Delete,
            _ => HttpMethod::Post,
        };
        let item = PathItem::new(method, operation(route));
        paths = paths.path(format!("{PREFIX}{}", route.path), item);
    }
    let mut schemas = vec![("Problem".to_owned(), Problem::schema())];
    for of in routes.iter().flat_map(|route| [route.input, route.output.schema()]).flatten() {
        schemas.push((of.name(), (of.schema)()));
        (of.others)(&mut schemas);
    }
    schemas.sort_by(|one, other| one.0.cmp(&other.0));
    schemas.dedup_by(|one, other| one.0 == other.0);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let cookie = ApiKey::Cookie(ApiKeyValue::new(super::guard::COOKIE));
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme("key", SecurityScheme::Http(bearer))
        .security_scheme("login", SecurityScheme::ApiKey(cookie))
        .build();
    let info = InfoBuilder::new()
        .title("Roadweave's controller")
        .version("1")
        .description(Some(DESCRIPTION))
        .build();
    OpenApiBuilder::new().info(info).paths(paths.build()).components(Some(components)).build()
}

pub fn text(routes: &[Route]) -> String {
    let mut text = serde_json::to_string_pretty(&document(routes)).unwrap_or_default();
    text.push('\n');
    text
}

fn operation(route: &Route) -> OperationBuilder {
    let mut operation = OperationBuilder::new()
        .operation_id(Some(route.name))
        .summary(Some(route.summary))
        .tag(tag(route.path));
    for name in parameters(route.path) {
        operation = operation.parameter(parameter(name, ParameterIn::Path, true));
    }
    let query: &[&str] = match route.output {
        Output::Records(_) => &["state", "tag", "scope", "cursor", "limit"],
        Output::Page(_) if route.path.ends_with("/samples") => {
            &["cursor", "limit", "step_ms", "from_ms", "to_ms"]
        }
        Output::Page(_) => &["cursor", "limit"],
        Output::Moved => &["code", "state"],
        _ => &[],
    };
    let is_needed = matches!(route.output, Output::Moved);
    for name in query {
        operation = operation.parameter(parameter(name, ParameterIn::Query, is_needed));
    }
    if route.if_match {
        operation = operation.parameter(parameter("If-Match", ParameterIn::Header, true));
    }
    if route.method == "POST" && !matches!(route.needs, Needs::Nothing | Needs::Password) {
        let once = parameter("Idempotency-Key", ParameterIn::Header, false);
        operation = operation.parameter(once);
    }
    if let Some(input) = route.input {
        let content = Content::new(Some(input.reference()));
        let body = RequestBodyBuilder::new()
            .content("application/json", content)
            .required(Some(Required::True));
        operation = operation.request_body(Some(body.build()));
    }
    operation = match route.needs {
        Needs::Nothing | Needs::Password => {
            operation.securities(Some(Vec::<SecurityRequirement>::new()))
        }
        _ => operation
            .securities(Some(["key", "login"].map(|name| SecurityRequirement::new(name, [""; 0])))),
    };
    if let Needs::Role(role) | Needs::Host(role) = route.needs {
        let host = if matches!(route.needs, Needs::Host(_)) { " of the host's tenant" } else { "" };
        let text = format!("Needs the role {}{host}.", format!("{role:?}").to_lowercase());
        operation = operation.description(Some(text));
    }
    let (status, response) = response(route.output);
    let problem = Content::new(Some(Ref::from_schema_name("Problem")));
    let problem = ResponseBuilder::new()
        .description("The problem")
        .content("application/problem+json", problem);
    operation.response(status.to_string(), response).response("default", problem.build())
}

fn response(output: Output) -> (u16, utoipa::openapi::Response) {
    let json = |status: u16, schema: RefOr<Schema>| {
        let response = ResponseBuilder::new()
            .description("Done")
            .content("application/json", Content::new(Some(schema)));
        (status, response.build())
    };
    match output {
        Output::Moved => (303, ResponseBuilder::new().description("Done").build()),
        Output::Nothing => (204, ResponseBuilder::new().description("Done").build()),
        Output::One(status, of) => json(status, of.reference().into()),
        Output::Record(status, of) => json(status, versioned(of)),
        Output::Records(of) => json(200, page(versioned(of))),
        Output::Page(of) | Output::All(of) => json(200, page(of.reference().into())),
        Output::Object => json(200, typed(Type::Object)),
        Output::Events => {
            let content = Content::new(Some(typed(Type::String)));
            let response = ResponseBuilder::new().description("Events, one for each change");
            (200, response.content("text/event-stream", content).build())
        }
    }
}

fn versioned(of: SchemaOf) -> RefOr<Schema> {
    let stamp = ObjectBuilder::new()
        .property("version", typed(Type::Integer))
        .property("changed_ms", typed(Type::Integer))
        .required("version")
        .required("changed_ms");
    RefOr::T(Schema::AllOf(AllOfBuilder::new().item(of.reference()).item(stamp).build()))
}

fn page(item: RefOr<Schema>) -> RefOr<Schema> {
    let next = ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .description(Some("The cursor of the next page; null at the end"));
    ObjectBuilder::new()
        .property("items", ArrayBuilder::new().items(item))
        .property("next", next)
        .required("items")
        .required("next")
        .build()
        .into()
}

fn typed(of: Type) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(SchemaType::new(of)).build().into()
}

fn parameter(name: &str, place: ParameterIn, required: bool) -> utoipa::openapi::path::Parameter {
    let needed = if required { Required::True } else { Required::False };
    let is_number = ["serial", "limit", "step_ms", "from_ms", "to_ms"].contains(&name);
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(needed)
        .schema(Some(typed(if is_number { Type::Integer } else { Type::String })))
        .build()
}

pub(super) fn parameters(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// The first segment after the tenant.
fn tag(path: &'static str) -> String {
    let words: BTreeSet<&str> = BTreeSet::from(["", "tenants", "{tenant}"]);
    let first = path.split('/').find(|part| !words.contains(part));
    first.unwrap_or("tenants").to_owned()
}

const DESCRIPTION: &str = "Lists have pages: `next` of one is the `cursor` of the following. \
Changes need the ETag of a GET in If-Match. A POST with an Idempotency-Key acts once. Errors are \
application/problem+json (RFC 9457).";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    #[test]
    fn types_that_differ_have_names_that_differ() {
        let mut known = BTreeMap::new();
        let routes = crate::api::routes::routes();
        for of in routes.iter().flat_map(|route| [route.input, route.output.schema()]).flatten() {
            let mut all = vec![(of.name(), (of.schema)())];
            (of.others)(&mut all);
            for (name, schema) in all {
                let text = serde_json::to_string(&schema).unwrap();
                assert_eq!(
                    known.entry(name.clone()).or_insert_with(|| text.clone()),
                    &text,
                    "{name}"
                );
            }
        }
    }
}
