//! The one table of operations: permissions, input and output of each.

use axum::routing::{MethodFilter, on};

use super::handlers::records::New;
use super::handlers::{changes, configs, devices, people, records, revoking, sessions, tokens};
use super::route::Needs::{Authenticated, Host, Nothing, Password};
use super::route::{Output, Route, SchemaOf, routes};
use crate::model::Role::{Crew, Operator, Owner, Viewer};
use crate::model::{
    ApiKey, Config, ConfigSettings, Delegate, Device, DeviceSettings, Person, PersonSettings, Pool,
    PoolSettings, Proxy, ProxySettings, Rollout, RolloutSettings, Tenant, TenantSettings, Token,
};
use crate::store::{AuditEntry, BoxSession, FleetState, ProxyStatus, Report, Revocation, Sample};

pub fn routes() -> Vec<Route> {
    [of_all(), of_tenant()].into_iter().flatten().collect()
}

routes! { of_all below "":
    POST "/sessions" logIn "Log in; the answer sets a cookie"
        [Password] sessions::log_in: sessions::LogIn => One(201, sessions::Session);
    POST "/sessions/oidc" beginSignIn
        "Start a sign-in with OpenID Connect; the answer sets a cookie"
        [Password] sessions::begin: sessions::BeginSignIn => One(201, sessions::SignIn);
    GET "/sessions/oidc/callback" finishSignIn
        "Redirect target of the issuer; the answer sets a cookie and redirects to /"
        [Password] sessions::callback => Moved;
    POST "/sessions/oidc/code" redeemCode
        "Log in with the code that the issuer gave to a program; the answer sets a cookie"
        [Password] sessions::redeem: sessions::Code => One(201, sessions::Session);
    GET "/sessions/current" whoAmI "The caller"
        [Authenticated] sessions::current => One(200, sessions::Session);
    DELETE "/sessions/current" logOut "Log out" [Authenticated] sessions::log_out => Nothing;

    GET "/tenants" listTenants "The tenants that the caller may see"
        [Viewer] people::list_tenants => Records(Tenant);
    POST "/tenants" createTenant "Create a tenant"
        [Host(Owner)] people::create_tenant: people::NewTenant => Record(201, Tenant);

    GET "/openapi.json" openApi "This interface as OpenAPI" [Nothing] changes::openapi => Object;
}

routes! { of_tenant below "/tenants/{tenant}":
    GET "" getTenant "A tenant" [Viewer] records::one::<Tenant> => Record(200, Tenant);
    PUT "" replaceTenant "Change a tenant"
        [Host(Owner)] records::replace::<Tenant>: TenantSettings => Record(200, Tenant), if_match;
    DELETE "" deleteTenant "Remove an empty tenant"
        [Host(Owner)] people::remove_tenant => Nothing, if_match;

    GET "/users" listUsers "The users" [Owner] records::list::<Person> => Records(Person);
    POST "/users" createUser "Add a user"
        [Owner] people::create: people::NewPerson => Record(201, Person);
    GET "/users/{id}" getUser "A user" [Owner] records::one::<Person> => Record(200, Person);
    PUT "/users/{id}" replaceUser "Change a role"
        [Owner] people::replace: PersonSettings => Record(200, Person), if_match;
    DELETE "/users/{id}" deleteUser "Remove a user" [Owner] people::remove => Nothing, if_match;
    PUT "/users/{id}/password" setPassword "Set a password; all logins of the user end"
        [Owner] people::set_password: people::NewPassword => Nothing;

    GET "/api-keys" listApiKeys "The API keys" [Owner] records::list::<ApiKey> => Records(ApiKey);
    POST "/api-keys" createApiKey
        "Create an API key, or a link that expires; its secret is shown once"
        [Owner] people::create_key: people::NewApiKey => One(201, people::MadeApiKey);
    GET "/api-keys/{id}" getApiKey "An API key, without secret"
        [Owner] records::one::<ApiKey> => Record(200, ApiKey);
    DELETE "/api-keys/{id}" deleteApiKey "Delete an API key"
        [Owner] records::remove::<ApiKey> => Nothing, if_match;

    GET "/devices" listDevices "The boxes" [Viewer] records::list::<Device> => Records(Device);
    POST "/devices" createDevice "Admit a box by its public key"
        [Operator] devices::create: devices::NewDevice => Record(201, Device);
    GET "/devices/{device}" getDevice "A box"
        [Viewer] records::one::<Device> => Record(200, Device);
    PUT "/devices/{device}" replaceDevice "Change"
        [Operator] records::replace::<Device>: DeviceSettings => Record(200, Device), if_match;
    POST "/devices/{device}/approve" approveDevice "Approve a box that waits for approval"
        [Operator] devices::approve => Record(200, Device);
    POST "/devices/{device}/revoke" revokeDevice
        "Revoke a box; the answer lists which proxies have confirmed"
        [Operator] revoking::member::<Device>: revoking::Reason => One(200, revoking::Revoked);
    POST "/devices/{device}/watch" watchDevice "Ask for figures 5 times a second for 30 s"
        [Crew] devices::watch => Nothing;
    GET "/devices/{device}/report" getReport "The last report of a box"
        [Viewer] devices::report => One(200, Report);
    GET "/devices/{device}/sessions" listBoxSessions "Sessions of a box, newest first"
        [Viewer] devices::sessions => All(BoxSession);
    GET "/devices/{device}/samples" listSamples "Figures of a box over time"
        [Viewer] devices::samples => Page(Sample);

    GET "/tokens" listTokens "The tokens" [Operator] records::list::<Token> => Records(Token);
    POST "/tokens" createToken "Create a token with which boxes join; it is shown once"
        [Operator] tokens::create: tokens::NewToken => One(201, tokens::MadeToken);
    GET "/tokens/{id}" getToken "A token" [Operator] records::one::<Token> => Record(200, Token);
    DELETE "/tokens/{id}" deleteToken "Delete a token"
        [Operator] records::remove::<Token> => Nothing, if_match;

    GET "/delegates" listDelegates "The delegates"
        [Operator] records::list::<Delegate> => Records(Delegate);
    POST "/delegates" createDelegate
        "Register a delegate: a key that the root, which is kept elsewhere, lets sign others"
        [Operator] tokens::create_delegate: tokens::NewDelegate => Record(201, Delegate);
    GET "/delegates/{id}" getDelegate "One"
        [Operator] records::one::<Delegate> => Record(200, Delegate);
    POST "/delegates/{id}/revoke" revokeDelegate
        "Revoke a delegate and all keys that it signed"
        [Operator] revoking::delegate: revoking::Reason => One(200, revoking::Revoked);

    GET "/pools" listPools "The pools" [Viewer] records::list::<Pool> => Records(Pool);
    POST "/pools" createPool "Create a pool"
        [Operator] records::create::<Pool>: New<PoolSettings> as "NewPool" => Record(201, Pool);
    GET "/pools/{id}" getPool "A pool" [Viewer] records::one::<Pool> => Record(200, Pool);
    PUT "/pools/{id}" replacePool "Change"
        [Operator] records::replace::<Pool>: PoolSettings => Record(200, Pool), if_match;
    DELETE "/pools/{id}" deletePool "Remove"
        [Operator] records::remove::<Pool> => Nothing, if_match;

    GET "/proxies" listProxies "The proxies" [Viewer] records::list::<Proxy> => Records(Proxy);
    POST "/proxies" createProxy "Admit a proxy or anchor by its public key"
        [Operator] records::create::<Proxy>: New<ProxySettings> as "NewProxy" => Record(201, Proxy);
    GET "/proxies/{id}" getProxy "A proxy" [Viewer] records::one::<Proxy> => Record(200, Proxy);
    PUT "/proxies/{id}" replaceProxy "Change"
        [Operator] records::replace::<Proxy>: ProxySettings => Record(200, Proxy), if_match;
    DELETE "/proxies/{id}" deleteProxy
        "Delete a proxy or anchor that was drained or revoked, and is not connected"
        [Operator] devices::remove_proxy => Nothing, if_match;
    POST "/proxies/{id}/drain" drainProxy
        "Drain a proxy: assign no more boxes to it, and move its boxes to others"
        [Operator] devices::drain: devices::Drain => Record(200, Proxy);
    POST "/proxies/{id}/revoke" revokeProxy "Revoke a proxy or anchor"
        [Operator] revoking::member::<Proxy>: revoking::Reason => One(200, revoking::Revoked);
    GET "/proxy-status" listProxyStatus "Which proxies are connected, since when, and their load"
        [Viewer] devices::proxy_status => All(ProxyStatus);

    GET "/configs" listConfigs "Versions" [Viewer] records::list::<Config> => Records(Config);
    POST "/configs" createConfig "Create the next version of a configuration"
        [Operator] configs::create: ConfigSettings => Record(201, Config);
    GET "/configs/{id}" getConfig "A version"
        [Viewer] records::one::<Config> => Record(200, Config);
    GET "/configs/{id}/approval" getApproval "What an approver signs to approve a configuration"
        [Viewer] configs::approval => One(200, configs::Approvable);
    POST "/configs/{id}/approval" approveConfig
        "Submit the approval of an approver named by the root"
        [Operator] configs::approve: configs::SignedApproval => Record(200, Config);

    GET "/rollouts" listRollouts "Roll-outs" [Viewer] records::list::<Rollout> => Records(Rollout);
    POST "/rollouts" createRollout "Roll a configuration out to boxes, wave by wave"
        [Operator] records::create::<Rollout>: New<RolloutSettings> as "NewRollout"
            => Record(201, Rollout);
    GET "/rollouts/{id}" getRollout "One" [Viewer] records::one::<Rollout> => Record(200, Rollout);
    PUT "/rollouts/{id}" replaceRollout "Pause, resume or abort a roll-out"
        [Operator] records::replace::<Rollout>: RolloutSettings => Record(200, Rollout), if_match;

    GET "/revocations" listRevocations "Keys" [Viewer] changes::revocations => Page(Revocation);
    POST "/revocations" createRevocation "Revoke any key of the tenant"
        [Operator] revoking::key: revoking::KeyAndReason => One(200, revoking::Revoked);
    GET "/revocations/{serial}" getRevocation "A revocation, and which proxies have confirmed it"
        [Viewer] revoking::revocation => One(200, revoking::Revoked);

    GET "/audit" listAudit "The audit log" [Owner] changes::audit => Page(AuditEntry);
    GET "/audit-check" checkAudit "Verify that the audit log is what the controller wrote"
        [Owner] changes::check => One(200, changes::Checked);

    GET "/live" live "Changes as server-sent events; Last-Event-ID resumes after that event"
        [Viewer] changes::live => Events;
    GET "/devices/{device}/live" liveDevice
        "A box's session, report and figures as server-sent events"
        [Viewer] changes::live_device => Events;
    GET "/state" getState "The state of the fleet" [Viewer] changes::state => One(200, FleetState);
}
