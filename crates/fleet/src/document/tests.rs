use super::*;
use crate::statement::Role;
use crate::testing::{chain, identity, key, name, sign, statement};
use crate::trust::TrustList;

fn version(epoch: u64, number: u64) -> Version {
    Version { epoch, number }
}

fn document(subject: u8, version: Version) -> Document<Configuration> {
    let body = Configuration { text: "[lanes]".into(), approval: None };
    Document { subject: key(subject), version, body }
}

fn north() -> Name {
    name("north")
}

fn with_approver() -> Trust {
    let mut trust = Trust::pinned(key(1), key(9));
    let list = TrustList { number: 1, approvers: vec![key(7)], ..trust.list().clone() };
    trust.replace(&sign(&list, 1)).expect("taken");
    trust
}

#[test]
fn a_document_is_for_one_box_and_never_older() {
    let trust = Trust::pinned(key(1), key(9));
    let open = |document: &Document<Configuration>, by, held| {
        Document::open(&sign(document, by), &trust, key(5), held).map(|found| found.version)
    };
    let (first, second) = (version(0, 1), version(0, 2));
    assert_eq!(open(&document(5, second), 9, Some(first)), Ok(second));
    let not_signed = Err(DocumentError::Envelope(EnvelopeError::NotSigned));
    assert_eq!(open(&document(5, second), 1, None), not_signed, "a root is no controller");
    assert_eq!(open(&document(6, second), 9, None), Err(DocumentError::OtherSubject));
    for held in [first, second] {
        let older = DocumentError::Older { version: first, held };
        assert_eq!(open(&document(5, first), 9, Some(held)), Err(older));
    }
}

#[test]
fn an_epoch_begins_by_the_word_of_a_root() {
    let mut trust = Trust::pinned(key(1), key(9));
    let restored = sign(&document(5, version(1, 1)), 9);
    let held = Some(version(0, 70));
    let found = Document::open(&restored, &trust, key(5), held);
    assert_eq!(found, Err(DocumentError::Epoch(1)));
    let list = TrustList { number: 1, epoch: 1, ..trust.list().clone() };
    trust.replace(&sign(&list, 1)).expect("taken");
    assert!(Document::open(&restored, &trust, key(5), held).is_ok());
}

fn approval(
    (tenant, target): (&str, Target),
    number: u64,
    text: &str,
    by: u8,
) -> Option<Signed<Approval>> {
    let text = Digest::of([text.as_bytes()]);
    Some(sign(&Approval { tenant: name(tenant), target, number, text }, by))
}

#[test]
fn what_people_have_approved_is_for_these_boxes_and_never_comes_back() {
    let trust = with_approver();
    let tags = BTreeSet::from([name("tram")]);
    let mut approved = Approvals::default();
    let mut check = |target: Target, number| {
        let text = "[lanes]".to_owned();
        let approval = approval(("north", target), number, &text, 7);
        let of = (&key(5), &tags);
        Configuration { text, approval }.check(&trust, &north(), of, &mut approved)
    };
    let tag = |tag: &str| Target::Tag(name(tag));
    assert_eq!(check(tag("tram"), 3), Ok(()));
    assert_eq!(check(tag("tram"), 3), Ok(()), "the same may come again, after a restart");
    assert_eq!(check(tag("tram"), 2), Err(DocumentError::ApprovedBefore(2)));
    assert_eq!(check(tag("bus"), 9), Err(DocumentError::NotApproved));
    assert_eq!(check(Target::Device(key(6)), 9), Err(DocumentError::NotApproved));
    assert_eq!(check(Target::Device(key(5)), 1), Ok(()));
    assert_eq!(check(Target::Tenant, 1), Ok(()));
}

#[test]
fn where_people_must_approve_the_controller_alone_changes_nothing() {
    let trust = with_approver();
    let text = "[lanes]".to_owned();
    let approval = |tenant: &str, text: &str, by| approval((tenant, Target::Tenant), 1, text, by);
    let check = |approval| {
        let configuration = Configuration { text: text.clone(), approval };
        let of = (&key(5), &BTreeSet::new());
        configuration.check(&trust, &north(), of, &mut Approvals::default())
    };
    assert_eq!(check(None), Err(DocumentError::NotApproved));
    assert_eq!(check(approval("north", &text, 7)), Ok(()));
    assert_eq!(check(approval("south", &text, 7)), Err(DocumentError::NotApproved));
    assert_eq!(check(approval("north", "[other]", 7)), Err(DocumentError::NotApproved));
    let not_signed = DocumentError::Envelope(EnvelopeError::NotSigned);
    assert_eq!(check(approval("north", &text, 9)), Err(not_signed));
}

#[test]
fn an_approver_signs_only_the_text_that_was_read() {
    let waiting = |text: &str, of: &str| {
        let (tenant, target) = (north(), Target::Tenant);
        let approval = Approval { tenant, target, number: 1, text: Digest::of([of.as_bytes()]) };
        Waiting { approval, text: text.to_owned() }
    };
    let signed = waiting("a = 1\n", "a = 1\n").sign(&identity(7)).expect("signed");
    let (approval, _) = signed.verify_by([key(7)]).expect("by 7");
    assert_eq!(approval, waiting("a = 1\n", "a = 1\n").approval);
    let other = waiting("a = 1", "a = 2").sign(&identity(7));
    assert_eq!(other.err(), Some(DocumentError::NotApproved));
    for hidden in ["a = 1\rb = 2", "a = 1 # \u{202e}", "\u{1b}[2K"] {
        let error = waiting(hidden, hidden).sign(&identity(7)).err();
        assert_eq!(error, Some(DocumentError::Hidden), "{hidden:?}");
    }
}

#[test]
fn an_anchor_without_gateways_is_written_as_before_they_were_known() {
    let chain = chain(&[(1, &statement(30, Role::Anchor))]);
    let (tenant, addresses) = (north(), vec!["192.0.2.7:4434".to_owned()]);
    let anchor = Anchor { tenant, chain, addresses, rate_kbps: None, gateways: Vec::new() };
    let written = serde_json::to_value(&anchor).expect("plain data");
    let fields: Vec<&String> = written.as_object().expect("fields").keys().collect();
    assert_eq!(fields, ["addresses", "chain", "tenant"]);
    assert_eq!(serde_json::from_value::<Anchor>(written).expect("readable"), anchor);
}
