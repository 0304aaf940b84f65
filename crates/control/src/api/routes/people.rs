//! The routes of logins, people and tenants.

use crate::api::handlers::{people, records, sessions, sign_in, tenants};
use crate::api::route::{Needs, Route, delete, get, post, put};
use crate::api::schema::Output;
use crate::model::{ApiKey, Person, PersonSettings, Role, Tenant, TenantSettings};

pub(super) fn session_routes() -> Vec<Route> {
    vec![
        post("/sessions", "logIn", "Log in; the answer sets a cookie", sessions::log_in)
            .needs(Needs::Password)
            .takes::<sessions::LogIn>()
            .gives::<sessions::Session>(201),
        post(
            "/sessions/oidc",
            "beginSignIn",
            "Say where to sign in by OpenID Connect; the answer sets a cookie",
            sign_in::begin,
        )
        .needs(Needs::Password)
        .takes::<sign_in::BeginSignIn>()
        .gives::<sign_in::SignIn>(201),
        get(
            "/sessions/oidc/callback",
            "finishSignIn",
            "Where the issuer leads a browser back to; the answer sets a cookie and leads to /",
            sign_in::callback,
        )
        .needs(Needs::Password)
        .output(Output::Moved),
        post(
            "/sessions/oidc/code",
            "redeemCode",
            "Log in by what the issuer has handed to a program; the answer sets a cookie",
            sign_in::redeem,
        )
        .needs(Needs::Password)
        .takes::<sign_in::Code>()
        .gives::<sessions::Session>(201),
        get("/sessions/current", "whoAmI", "Who asks", sessions::current)
            .needs(Needs::Anybody)
            .gives::<sessions::Session>(200),
        delete("/sessions/current", "logOut", "Log out", sessions::log_out).needs(Needs::Anybody),
    ]
}

pub(super) fn user_routes() -> Vec<Route> {
    use Role::Owner;
    vec![
        get("/tenants/{tenant}/users", "listUsers", "The people", records::list::<Person>)
            .role(Owner)
            .records::<Person>(),
        post("/tenants/{tenant}/users", "createUser", "Add somebody", people::create)
            .role(Owner)
            .takes::<people::NewPerson>()
            .record::<Person>(201),
        get("/tenants/{tenant}/users/{id}", "getUser", "Somebody", records::one::<Person>)
            .role(Owner)
            .record::<Person>(200),
        put("/tenants/{tenant}/users/{id}", "replaceUser", "Change a role", people::replace)
            .role(Owner)
            .takes::<PersonSettings>()
            .record::<Person>(200)
            .if_match(),
        delete("/tenants/{tenant}/users/{id}", "deleteUser", "Remove somebody", people::remove)
            .role(Owner)
            .if_match(),
        put(
            "/tenants/{tenant}/users/{id}/password",
            "setPassword",
            "Set a password; all logins of the person end",
            people::set_password,
        )
        .role(Owner)
        .takes::<people::NewPassword>(),
    ]
}

pub(super) fn api_key_routes() -> Vec<Route> {
    use Role::Owner;
    vec![
        get("/tenants/{tenant}/api-keys", "listApiKeys", "The API keys", records::list::<ApiKey>)
            .role(Owner)
            .records::<ApiKey>(),
        post(
            "/tenants/{tenant}/api-keys",
            "createApiKey",
            "Make an API key, or a link that expires; its secret is shown once",
            people::create_key,
        )
        .role(Owner)
        .takes::<people::NewApiKey>()
        .gives::<people::MadeApiKey>(201),
        get(
            "/tenants/{tenant}/api-keys/{id}",
            "getApiKey",
            "An API key, without secret",
            records::one::<ApiKey>,
        )
        .role(Owner)
        .record::<ApiKey>(200),
        delete(
            "/tenants/{tenant}/api-keys/{id}",
            "deleteApiKey",
            "Take an API key away",
            records::remove::<ApiKey>,
        )
        .role(Owner)
        .if_match(),
    ]
}

pub(super) fn tenant_routes() -> Vec<Route> {
    vec![
        get("/tenants", "listTenants", "The tenants that the caller may see", tenants::list)
            .role(Role::Viewer)
            .records::<Tenant>(),
        post("/tenants", "createTenant", "Make a tenant", tenants::create)
            .needs(Needs::Host(Role::Owner))
            .takes::<tenants::NewTenant>()
            .record::<Tenant>(201),
        get("/tenants/{tenant}", "getTenant", "A tenant", records::one::<Tenant>)
            .role(Role::Viewer)
            .record::<Tenant>(200),
        put("/tenants/{tenant}", "replaceTenant", "Change a tenant", records::replace::<Tenant>)
            .needs(Needs::Host(Role::Owner))
            .takes::<TenantSettings>()
            .record::<Tenant>(200)
            .if_match(),
        delete("/tenants/{tenant}", "deleteTenant", "Remove an empty tenant", tenants::remove)
            .needs(Needs::Host(Role::Owner))
            .if_match(),
    ]
}
