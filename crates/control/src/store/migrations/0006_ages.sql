-- What is too old is found without reading the rest.
CREATE INDEX change_by_age ON change (at_ms);
CREATE INDEX session_by_end ON session (to_ms);
