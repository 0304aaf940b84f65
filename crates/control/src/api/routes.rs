//! The one table of operations: permissions, input and output of each.

mod people;

use super::handlers::{
    changes, configs, delegates, devices, live, proxies, records, revoking, tokens,
};
use super::route::{Needs, Route, delete, get, post, put};
use super::schema::Output;
use crate::model::{
    Config, ConfigSettings, Delegate, Device, DeviceSettings, Pool, PoolSettings, Proxy,
    ProxySettings, Role, Rollout, RolloutSettings, Token,
};
use crate::store::{AuditEntry, BoxSession, FleetState, Report, Revocation, Sample};

/// All routes.
pub fn routes() -> Vec<Route> {
    let of_people = [
        people::session_routes(),
        people::user_routes(),
        people::api_key_routes(),
        people::tenant_routes(),
    ];
    let of_boxes = [device_routes(), token_routes(), delegate_routes()];
    let of_proxies = [pool_routes(), proxy_routes()];
    let of_the_rest =
        [config_routes(), rollout_routes(), revocation_routes(), audit_routes(), live_routes()];
    let all = of_people.into_iter().chain(of_boxes).chain(of_proxies).chain(of_the_rest);
    all.flatten().collect()
}

fn device_routes() -> Vec<Route> {
    use Role::{Crew, Operator, Viewer};
    vec![
        get("/tenants/{tenant}/devices", "listDevices", "The boxes", records::list::<Device>)
            .role(Viewer)
            .records::<Device>(),
        post("/tenants/{tenant}/devices", "createDevice", "Admit a box by key", devices::create)
            .role(Operator)
            .takes::<devices::NewDevice>()
            .record::<Device>(201),
        get("/tenants/{tenant}/devices/{device}", "getDevice", "A box", records::one::<Device>)
            .role(Viewer)
            .record::<Device>(200),
        put(
            "/tenants/{tenant}/devices/{device}",
            "replaceDevice",
            "Change",
            records::replace::<Device>,
        )
        .role(Operator)
        .takes::<DeviceSettings>()
        .record::<Device>(200)
        .if_match(),
        post(
            "/tenants/{tenant}/devices/{device}/approve",
            "approveDevice",
            "Let in a box that waits",
            devices::approve,
        )
        .role(Operator)
        .record::<Device>(200),
        post(
            "/tenants/{tenant}/devices/{device}/revoke",
            "revokeDevice",
            "Admit a box no more; the answer says which proxies have confirmed",
            revoking::member::<Device>,
        )
        .role(Operator)
        .takes::<revoking::Reason>()
        .gives::<revoking::Revoked>(200),
        post(
            "/tenants/{tenant}/devices/{device}/watch",
            "watchDevice",
            "Ask for figures 5 times a second for 30 s",
            devices::watch,
        )
        .role(Crew),
        get(
            "/tenants/{tenant}/devices/{device}/report",
            "getReport",
            "What a box said of itself last",
            devices::report,
        )
        .role(Viewer)
        .gives::<Report>(200),
        get(
            "/tenants/{tenant}/devices/{device}/sessions",
            "listBoxSessions",
            "Where a box was connected, the latest first",
            devices::sessions,
        )
        .role(Viewer)
        .all::<BoxSession>(),
        get(
            "/tenants/{tenant}/devices/{device}/samples",
            "listSamples",
            "Figures of a box over time",
            devices::samples,
        )
        .role(Viewer)
        .page::<Sample>(),
    ]
}

fn token_routes() -> Vec<Route> {
    use Role::Operator;
    vec![
        get("/tenants/{tenant}/tokens", "listTokens", "The tokens", records::list::<Token>)
            .role(Operator)
            .records::<Token>(),
        post(
            "/tenants/{tenant}/tokens",
            "createToken",
            "Make a token by which boxes join; it is shown once",
            tokens::create,
        )
        .role(Operator)
        .takes::<tokens::NewToken>()
        .gives::<tokens::MadeToken>(201),
        get("/tenants/{tenant}/tokens/{id}", "getToken", "A token", records::one::<Token>)
            .role(Operator)
            .record::<Token>(200),
        delete(
            "/tenants/{tenant}/tokens/{id}",
            "deleteToken",
            "Take a token away",
            records::remove::<Token>,
        )
        .role(Operator)
        .if_match(),
    ]
}

fn delegate_routes() -> Vec<Route> {
    use Role::Operator;
    vec![
        get("/tenants/{tenant}/delegates", "listDelegates", "Who signs", records::list::<Delegate>)
            .role(Operator)
            .records::<Delegate>(),
        post(
            "/tenants/{tenant}/delegates",
            "createDelegate",
            "Put in a key that the root has signed to sign for others, where the root is elsewhere",
            delegates::create,
        )
        .role(Operator)
        .takes::<delegates::NewDelegate>()
        .record::<Delegate>(201),
        get("/tenants/{tenant}/delegates/{id}", "getDelegate", "One", records::one::<Delegate>)
            .role(Operator)
            .record::<Delegate>(200),
        post(
            "/tenants/{tenant}/delegates/{id}/revoke",
            "revokeDelegate",
            "Let a delegate sign no more, and admit nobody whom it has signed for",
            revoking::delegate,
        )
        .role(Operator)
        .takes::<revoking::Reason>()
        .gives::<revoking::Revoked>(200),
    ]
}

fn pool_routes() -> Vec<Route> {
    use Role::{Operator, Viewer};
    vec![
        get("/tenants/{tenant}/pools", "listPools", "The pools", records::list::<Pool>)
            .role(Viewer)
            .records::<Pool>(),
        post("/tenants/{tenant}/pools", "createPool", "Make a pool", records::create::<Pool>)
            .role(Operator)
            .takes_called::<records::New<PoolSettings>>("NewPool")
            .record::<Pool>(201),
        get("/tenants/{tenant}/pools/{id}", "getPool", "A pool", records::one::<Pool>)
            .role(Viewer)
            .record::<Pool>(200),
        put("/tenants/{tenant}/pools/{id}", "replacePool", "Change", records::replace::<Pool>)
            .role(Operator)
            .takes::<PoolSettings>()
            .record::<Pool>(200)
            .if_match(),
        delete("/tenants/{tenant}/pools/{id}", "deletePool", "Remove", records::remove::<Pool>)
            .role(Operator)
            .if_match(),
    ]
}

fn proxy_routes() -> Vec<Route> {
    use Role::{Operator, Viewer};
    vec![
        get("/tenants/{tenant}/proxies", "listProxies", "The proxies", records::list::<Proxy>)
            .role(Viewer)
            .records::<Proxy>(),
        post(
            "/tenants/{tenant}/proxies",
            "createProxy",
            "Admit a proxy or anchor by key",
            records::create::<Proxy>,
        )
        .role(Operator)
        .takes_called::<records::New<ProxySettings>>("NewProxy")
        .record::<Proxy>(201),
        get("/tenants/{tenant}/proxies/{id}", "getProxy", "A proxy", records::one::<Proxy>)
            .role(Viewer)
            .record::<Proxy>(200),
        put("/tenants/{tenant}/proxies/{id}", "replaceProxy", "Change", records::replace::<Proxy>)
            .role(Operator)
            .takes::<ProxySettings>()
            .record::<Proxy>(200)
            .if_match(),
        delete(
            "/tenants/{tenant}/proxies/{id}",
            "deleteProxy",
            "Forget a proxy or anchor that was drained or revoked, and is gone",
            proxies::remove,
        )
        .role(Operator)
        .if_match(),
        post(
            "/tenants/{tenant}/proxies/{id}/drain",
            "drainProxy",
            "Give a proxy no more boxes, and let those that it has move away",
            devices::drain,
        )
        .role(Operator)
        .takes::<devices::Drain>()
        .record::<Proxy>(200),
        post(
            "/tenants/{tenant}/proxies/{id}/revoke",
            "revokeProxy",
            "Admit a proxy or anchor no more",
            revoking::member::<Proxy>,
        )
        .role(Operator)
        .takes::<revoking::Reason>()
        .gives::<revoking::Revoked>(200),
        get(
            "/tenants/{tenant}/proxy-status",
            "listProxyStatus",
            "Which proxies are there, since when, and how loaded",
            devices::proxy_status,
        )
        .role(Viewer)
        .all::<crate::store::ProxyStatus>(),
    ]
}

fn config_routes() -> Vec<Route> {
    use Role::{Operator, Viewer};
    vec![
        get("/tenants/{tenant}/configs", "listConfigs", "Versions", records::list::<Config>)
            .role(Viewer)
            .records::<Config>(),
        post(
            "/tenants/{tenant}/configs",
            "createConfig",
            "Write the next version of a configuration",
            configs::create,
        )
        .role(Operator)
        .takes::<ConfigSettings>()
        .record::<Config>(201),
        get("/tenants/{tenant}/configs/{id}", "getConfig", "A version", records::one::<Config>)
            .role(Viewer)
            .record::<Config>(200),
        get(
            "/tenants/{tenant}/configs/{id}/approval",
            "getApproval",
            "What a person signs so that a configuration counts",
            configs::approval,
        )
        .role(Viewer)
        .gives::<configs::Approvable>(200),
        post(
            "/tenants/{tenant}/configs/{id}/approval",
            "approveConfig",
            "Put in the approval of one whom the root names for it",
            configs::approve,
        )
        .role(Operator)
        .takes::<configs::SignedApproval>()
        .record::<Config>(200),
    ]
}

fn rollout_routes() -> Vec<Route> {
    use Role::{Operator, Viewer};
    vec![
        get("/tenants/{tenant}/rollouts", "listRollouts", "Roll-outs", records::list::<Rollout>)
            .role(Viewer)
            .records::<Rollout>(),
        post(
            "/tenants/{tenant}/rollouts",
            "createRollout",
            "Bring a configuration to boxes, wave by wave",
            records::create::<Rollout>,
        )
        .role(Operator)
        .takes_called::<records::New<RolloutSettings>>("NewRollout")
        .record::<Rollout>(201),
        get("/tenants/{tenant}/rollouts/{id}", "getRollout", "One", records::one::<Rollout>)
            .role(Viewer)
            .record::<Rollout>(200),
        put(
            "/tenants/{tenant}/rollouts/{id}",
            "replaceRollout",
            "Pause a roll-out, go on with it, or take it back",
            records::replace::<Rollout>,
        )
        .role(Operator)
        .takes::<RolloutSettings>()
        .record::<Rollout>(200)
        .if_match(),
    ]
}

fn revocation_routes() -> Vec<Route> {
    use Role::{Operator, Viewer};
    vec![
        get("/tenants/{tenant}/revocations", "listRevocations", "Keys", changes::revocations)
            .role(Viewer)
            .page::<Revocation>(),
        post(
            "/tenants/{tenant}/revocations",
            "createRevocation",
            "Revoke a key of the tenant, whatever it was",
            revoking::key,
        )
        .role(Operator)
        .takes::<revoking::KeyAndReason>()
        .gives::<revoking::Revoked>(200),
        get(
            "/tenants/{tenant}/revocations/{serial}",
            "getRevocation",
            "A revocation, and who has confirmed it",
            revoking::revocation,
        )
        .role(Viewer)
        .gives::<revoking::Revoked>(200),
    ]
}

fn audit_routes() -> Vec<Route> {
    use Role::Owner;
    vec![
        get("/tenants/{tenant}/audit", "listAudit", "Who did what", changes::audit)
            .role(Owner)
            .page::<AuditEntry>(),
        get(
            "/tenants/{tenant}/audit-check",
            "checkAudit",
            "Whether the audit log is what the controller wrote",
            changes::check,
        )
        .role(Owner)
        .gives::<changes::Checked>(200),
    ]
}

fn live_routes() -> Vec<Route> {
    use Role::Viewer;
    vec![
        get(
            "/tenants/{tenant}/live",
            "live",
            "What changes, as server-sent events; Last-Event-ID goes on where one ended",
            changes::live,
        )
        .role(Viewer)
        .output(Output::Events),
        get(
            "/tenants/{tenant}/devices/{device}/live",
            "liveDevice",
            "A box's session, report and figures as they come, as server-sent events",
            live::device,
        )
        .role(Viewer)
        .output(Output::Events),
        get("/tenants/{tenant}/state", "getState", "How the fleet is now", changes::state)
            .role(Viewer)
            .gives::<FleetState>(200),
        get("/openapi.json", "openApi", "This interface as OpenAPI", changes::openapi)
            .needs(Needs::Nothing)
            .output(Output::Object),
    ]
}
