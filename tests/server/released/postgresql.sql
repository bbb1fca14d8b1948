CREATE TABLE charters (
	population VARCHAR(64) NOT NULL, 
	sequence BIGINT NOT NULL, 
	signed BYTEA NOT NULL, 
	PRIMARY KEY (population, sequence)
)
--
CREATE TABLE tasks (
	sequence BIGSERIAL NOT NULL, 
	task_sha256 BYTEA NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	population VARCHAR(64) NOT NULL, 
	definition BYTEA NOT NULL, 
	signature BYTEA NOT NULL, 
	planned_rounds BIGINT NOT NULL, 
	state BIGINT NOT NULL, 
	failure TEXT NOT NULL, 
	abandoned FLOAT, 
	PRIMARY KEY (sequence), 
	UNIQUE (task_sha256)
)
--
CREATE TABLE item_features (
	task_sha256 BYTEA NOT NULL, 
	matrix BYTEA NOT NULL, 
	PRIMARY KEY (task_sha256), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE TABLE local_reports (
	task_sha256 BYTEA NOT NULL, 
	report_id BYTEA NOT NULL, 
	received FLOAT NOT NULL, 
	content BYTEA NOT NULL, 
	PRIMARY KEY (task_sha256, report_id), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE TABLE local_rows (
	task_sha256 BYTEA NOT NULL, 
	place BIGINT NOT NULL, 
	overwritten BIGINT NOT NULL, 
	content BYTEA NOT NULL, 
	PRIMARY KEY (task_sha256, place), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE TABLE rounds (
	task_sha256 BYTEA NOT NULL, 
	round BIGINT NOT NULL, 
	state BIGINT NOT NULL, 
	contributions BIGINT NOT NULL, 
	opened FLOAT NOT NULL, 
	closed FLOAT NOT NULL, 
	release BYTEA NOT NULL, 
	release_signature BYTEA NOT NULL, 
	round_key BYTEA NOT NULL, 
	PRIMARY KEY (task_sha256, round), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE TABLE task_history (
	sequence BIGSERIAL NOT NULL, 
	task_sha256 BYTEA NOT NULL, 
	at FLOAT NOT NULL, 
	event VARCHAR(32) NOT NULL, 
	round BIGINT, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (sequence), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE TABLE token_keys (
	task_sha256 BYTEA NOT NULL, 
	round BIGINT NOT NULL, 
	signed BYTEA NOT NULL, 
	PRIMARY KEY (task_sha256, round), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE TABLE versions (
	task_sha256 BYTEA NOT NULL, 
	version BIGINT NOT NULL, 
	manifest BYTEA NOT NULL, 
	signature BYTEA NOT NULL, 
	published FLOAT, 
	state BYTEA, 
	tables BYTEA, 
	PRIMARY KEY (task_sha256, version), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE INDEX ix_tasks_state ON tasks (state)
--
CREATE INDEX ix_task_history_task_sha256 ON task_history (task_sha256)
--
CREATE OR REPLACE FUNCTION task_history_refuses_changes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'task_history is append-only'; END $$
--
CREATE OR REPLACE TRIGGER task_history_refuses_changes BEFORE UPDATE OR DELETE OR TRUNCATE ON task_history FOR EACH STATEMENT EXECUTE FUNCTION task_history_refuses_changes()
